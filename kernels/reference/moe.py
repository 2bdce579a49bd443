"""Mixture of experts: the gate, the sort by expert, the experts' products and the weighted sum, all row by row."""

from collections.abc import Sequence
from functools import cache
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from .matmul import PackedWeight, matmul

__all__ = ["moe_combine", "moe_gate", "moe_grouped_gemm", "moe_permute", "swiglu"]

_EPSILON = 1e-20  # of DeepSeek's published gate: keeps the normalisation finite when every chosen score is zero


def moe_gate(
    logits: Tensor,
    *,
    k: int,
    scoring: Literal["softmax", "sigmoid"],
    bias: Tensor | None = None,
    num_groups: int = 1,
    top_groups: int = 1,
    group_score: Literal["max", "top2"] = "max",
    normalize: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Choose `k` experts a row: (ids int64 [rows, k], weights fp32 [rows, k]), best first; ties go to the smaller id.

    `logits` fp32 [rows, experts]. Scores plus `bias` [experts] decide which experts are chosen, the scores alone how
    much they weigh. With `num_groups` > 1 only experts of the `top_groups` best groups can be chosen; a group's score
    is its best expert ("max") or the sum of its best two ("top2"). `normalize`: the k weights sum to one before
    `scale` multiplies them. This is the only place that applies the routed scaling factor.
    (DeepSeek-V2, arXiv 2405.04434, section 2.2; DeepSeek-V3, arXiv 2412.19437, section 2.1.2.)
    """
    assert logits.dtype == torch.float32
    scores = logits.softmax(-1) if scoring == "softmax" else _sigmoid(logits)
    choice = scores if bias is None else scores + bias
    if num_groups > 1:
        choice = _keep_best_groups(choice, num_groups, top_groups, group_score)
    ids = _best(choice, k)
    weights = scores.gather(1, ids)
    if normalize:
        weights = weights / _sum_in_order(weights).add_(_EPSILON).unsqueeze(1)
    return ids, weights * scale


def moe_permute(ids: Tensor, num_experts: int) -> tuple[Tensor, Tensor]:
    """Sort the flat slots of `ids` [rows, k] by expert, stably.

    Returns `order` int64 [rows * k], the slot (row * k + place) at each sorted position, and `offsets` int64
    [num_experts + 1]: expert e owns the sorted positions offsets[e] to offsets[e + 1].
    """
    flat = ids.reshape(-1)
    order = torch.argsort(flat, stable=True)
    offsets = torch.zeros(num_experts + 1, dtype=torch.int64)
    torch.cumsum(torch.bincount(flat, minlength=num_experts), 0, out=offsets[1:])
    return order, offsets


def moe_grouped_gemm(x: Tensor, weights: Sequence[PackedWeight], offsets: Tensor) -> Tensor:
    """`x` [positions, in], sorted by expert, times its own expert's weight [out, in] transposed: [positions, out]."""
    bounds = offsets.tolist()
    products = [
        matmul(x[start:end], weight)
        for weight, start, end in zip(weights, bounds[:-1], bounds[1:], strict=True)
        if start < end
    ]
    return torch.cat(products) if products else x.new_empty((0, weights[0].shape[0]))


def moe_combine(y: Tensor, order: Tensor, weights: Tensor) -> Tensor:
    """Weighted sum of each row's k expert results: fp32 [rows, width], summed in slot order in fp32.

    `y` [rows * k, width] sorted by expert, `order` of :func:`moe_permute`, `weights` fp32 [rows, k].
    """
    rows, k = weights.shape
    slots = torch.empty_like(y).index_copy_(0, order, y).view(rows, k, y.shape[1])
    return _sum_in_order(slots * weights.unsqueeze(-1))


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) · up for `gate_up` [rows, 2 · width], gate first: [rows, width] in the same dtype."""
    gate, up = gate_up.chunk(2, -1)
    if gate_up.dtype == torch.float32:
        return _silu(gate).mul_(up)
    if _library_silu_is_invariant(gate_up.dtype):
        return F.silu(gate).mul_(up)
    return _silu(gate.float()).mul_(up).to(gate_up.dtype)


def _keep_best_groups(choice: Tensor, num_groups: int, top_groups: int, group_score: str) -> Tensor:
    grouped = choice.view(choice.shape[0], num_groups, -1)
    if group_score == "max":
        scores = grouped.amax(-1)
    else:
        best, second = grouped.topk(2, -1).values.unbind(-1)
        scores = best + second
    dropped = torch.ones_like(scores, dtype=torch.bool).scatter_(1, _best(scores, top_groups), False)
    return grouped.masked_fill(dropped.unsqueeze(-1), -torch.inf).view_as(choice)


def _best(scores: Tensor, k: int) -> Tensor:
    """Ids of the k largest, best first. `topk` leaves open which of equal entries it takes; a stable sort does not."""
    return scores.sort(dim=-1, descending=True, stable=True).indices[:, :k]


def _sum_in_order(terms: Tensor) -> Tensor:
    """Sum over dimension 1, one entry after the other."""
    total, *rest = terms.unbind(1)
    total = total.clone()
    for term in rest:
        total.add_(term)
    return total


def _sigmoid(x: Tensor) -> Tensor:
    return x.neg().exp_().add_(1.0).reciprocal_()


def _silu(x: Tensor) -> Tensor:
    """In steps whose results don't depend on an element's place. The library's fused fp32 sigmoid and silu take another
    exponential for the last few elements of a loop than for the rest, so a row's bits would depend on its neighbours.
    """
    denominator = x.neg().exp_().add_(1.0)
    return torch.div(x, denominator, out=denominator)


@cache
def _library_silu_is_invariant(dtype: torch.dtype) -> bool:
    """Compare the vector and the scalar loop of `silu` over every value of a 16-bit type."""
    values = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)
    values = torch.where(values.isfinite(), values, torch.zeros_like(values))
    strided = values.repeat_interleave(2)[::2]
    return torch.equal(F.silu(values).view(torch.int16), F.silu(strided).view(torch.int16))
