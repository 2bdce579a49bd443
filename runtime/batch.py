"""What one forward pass reads: flat tensors of one step, thrown away after it."""

from dataclasses import dataclass

from torch import Tensor

from ..kernels.dispatch import AttentionPlan

__all__ = ["ForwardInput"]


@dataclass(frozen=True, slots=True)
class ForwardInput:
    """Rows of all sequences of a step, one after the other."""

    token_ids: Tensor  # int64 [rows]
    positions: Tensor  # int64 [rows]: index in the sequence
    slots: Tensor  # int64 [rows]: page * page_size + offset, where the row's cache entry is written
    attention: AttentionPlan
