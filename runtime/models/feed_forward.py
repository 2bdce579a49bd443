"""Feed-forward layers: plain, and a mixture of experts."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ...kernels.dispatch import (
    PackedWeight,
    matmul,
    moe_combine,
    moe_gate,
    moe_grouped_gemm,
    moe_permute,
    swiglu,
)
from ..model_config import GateConfig

__all__ = ["FeedForward", "Gate", "MixtureOfExperts", "PlainFeedForward"]


class FeedForward(Protocol):
    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        """Feed-forward of normalised rows `x` plus `residual`, both [rows, hidden]."""
        ...


@dataclass(frozen=True)
class PlainFeedForward:
    """down(silu(gate) · up); also the form of the shared experts, side by side."""

    gate_up: PackedWeight
    down: PackedWeight

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        return matmul(swiglu(matmul(x, self.gate_up)), self.down, residual=residual)


@dataclass(frozen=True)
class Gate:
    """Router in fp32 with fp32 weights. It alone applies the routed scaling factor."""

    weight: PackedWeight
    bias: Tensor | None
    config: GateConfig

    def __post_init__(self) -> None:
        assert self.weight.dtype == torch.float32
        assert (self.bias is not None) == self.config.has_bias

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Expert ids int64 and weights fp32, both [rows, k]."""
        config = self.config
        return moe_gate(
            matmul(x.float(), self.weight),
            k=config.k,
            scoring=config.scoring,
            bias=self.bias,
            num_groups=config.num_groups,
            top_groups=config.top_groups,
            group_score=config.group_score,
            normalize=config.normalize,
            scale=config.scale,
        )


@dataclass(frozen=True)
class MixtureOfExperts:
    """Routed experts plus shared ones. `gate` None: every expert is active with weight 1."""

    gate: Gate | None
    gate_up: tuple[PackedWeight, ...]
    down: tuple[PackedWeight, ...]
    shared: PlainFeedForward | None

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        ids, weights = self._all(x) if self.gate is None else self.gate.forward(x)
        order, offsets = moe_permute(ids, len(self.down))
        gathered = x.index_select(0, order.div(ids.shape[1], rounding_mode="floor"))
        hidden = swiglu(moe_grouped_gemm(gathered, self.gate_up, offsets))
        routed = moe_combine(moe_grouped_gemm(hidden, self.down, offsets), order, weights)
        rest = residual if self.shared is None else self.shared.forward(x, residual)
        return routed.add_(rest).to(x.dtype)

    def _all(self, x: Tensor) -> tuple[Tensor, Tensor]:
        rows, experts = x.shape[0], len(self.down)
        return torch.arange(experts).expand(rows, experts), torch.ones(rows, experts)
