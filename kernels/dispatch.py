"""The one place that chooses an implementation by the tensor's device.

Only the CPU implementations are wired so far; the CUDA kernels in this folder are called directly.
"""

from .reference.matmul import PackedWeight, matmul, pack_weight
from .reference.mla_attention import BLOCK_TOKENS, AttentionPlan, mla_attention, plan_attention
from .reference.moe import moe_combine, moe_gate, moe_grouped_gemm, moe_permute, swiglu
from .reference.rms_norm import rms_norm
from .reference.rope import apply_rope

__all__ = [
    "BLOCK_TOKENS",
    "AttentionPlan",
    "PackedWeight",
    "apply_rope",
    "matmul",
    "mla_attention",
    "moe_combine",
    "moe_gate",
    "moe_grouped_gemm",
    "moe_permute",
    "pack_weight",
    "plan_attention",
    "rms_norm",
    "swiglu",
]
