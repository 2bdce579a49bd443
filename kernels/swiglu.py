"""SwiGLU activation on the GPU. Source: Shazeer, "GLU Variants Improve Transformer", 2020."""
# mypy: allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["swiglu"]

_BLOCK = 1024


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of `gate_up` [rows, 2 * width] with the gate first; fp32 inside, [rows, width] in its dtype."""
    rows, double = gate_up.shape
    width = double // 2
    out = torch.empty((rows, width), dtype=gate_up.dtype, device=gate_up.device)
    if rows:
        _swiglu_kernel[(rows, triton.cdiv(width, _BLOCK))](gate_up.contiguous(), out, width, BLOCK=_BLOCK)
    return out


@triton.jit
def _swiglu_kernel(gate_up, out, width, BLOCK: tl.constexpr):
    """A block of one row."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < width
    gate = tl.load(gate_up + row * 2 * width + columns, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * width + columns, (gate / (1.0 + tl.exp(-gate)) * up).to(out.dtype.element_ty), mask=mask)
