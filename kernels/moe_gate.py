"""The experts' gate on the GPU: one warp a row, so a row's choice depends on that row alone."""
# mypy: allow-untyped-defs, allow-incomplete-defs

from typing import Literal

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["moe_gate"]


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
    `scale` multiplies them. (DeepSeek-V2, arXiv 2405.04434, section 2.2; DeepSeek-V3, arXiv 2412.19437, section 2.1.2.)
    """
    rows, experts = logits.shape
    assert logits.dtype == torch.float32 and experts % num_groups == 0
    assert k <= (experts // num_groups * top_groups if num_groups > 1 else experts)
    ids = torch.empty((rows, k), dtype=torch.int64, device=logits.device)
    weights = torch.empty((rows, k), dtype=torch.float32, device=logits.device)
    if rows:
        _moe_gate_kernel[(rows,)](
            logits.contiguous(), logits if bias is None else bias, ids, weights, scale,
            EXPERTS=experts, EXPERTS_PADDED=triton.next_power_of_2(experts), K=k, K_PADDED=triton.next_power_of_2(k),
            SIGMOID=scoring == "sigmoid", HAS_BIAS=bias is not None, GROUPS=num_groups,
            GROUPS_PADDED=triton.next_power_of_2(num_groups), TOP_GROUPS=top_groups, TOP_TWO=group_score == "top2",
            NORMALIZE=normalize, num_warps=1,
        )  # fmt: skip
    return ids, weights


@triton.jit
def _moe_gate_kernel(
    logits, bias, ids, weights, scale,
    EXPERTS: tl.constexpr, EXPERTS_PADDED: tl.constexpr, K: tl.constexpr, K_PADDED: tl.constexpr,
    SIGMOID: tl.constexpr, HAS_BIAS: tl.constexpr, GROUPS: tl.constexpr, GROUPS_PADDED: tl.constexpr,
    TOP_GROUPS: tl.constexpr, TOP_TWO: tl.constexpr, NORMALIZE: tl.constexpr,
):  # fmt: skip
    """One row of logits [rows, EXPERTS]."""
    row = tl.program_id(0).to(tl.int64)
    experts = tl.arange(0, EXPERTS_PADDED)
    real = experts < EXPERTS
    x = tl.load(logits + row * EXPERTS + experts, mask=real, other=float("-inf"))
    if SIGMOID:
        scores = 1.0 / (1.0 + tl.exp(-x))
    else:
        powers = tl.exp(x - tl.max(x, axis=0))
        scores = powers / tl.sum(powers, axis=0)
    choice = scores
    if HAS_BIAS:
        choice += tl.load(bias + experts, mask=real, other=0.0)
    choice = tl.where(real, choice, float("-inf"))
    if GROUPS > 1:
        group_of = experts // (EXPERTS // GROUPS)
        groups = tl.arange(0, GROUPS_PADDED)
        group_scores = tl.full((GROUPS_PADDED,), float("-inf"), dtype=tl.float32)
        for group in tl.static_range(GROUPS):
            members = tl.where(group_of == group, choice, float("-inf"))
            best = tl.max(members, axis=0)
            if TOP_TWO:
                first = tl.argmax(members, axis=0, tie_break_left=True)
                best += tl.max(tl.where(experts == first, float("-inf"), members), axis=0)
            group_scores = tl.where(groups == group, best, group_scores)
        kept = tl.zeros((EXPERTS_PADDED,), dtype=tl.int32)
        for _ in tl.static_range(TOP_GROUPS):
            top = tl.argmax(group_scores, axis=0, tie_break_left=True)
            kept = tl.where(group_of == top, 1, kept)
            group_scores = tl.where(groups == top, float("-inf"), group_scores)
        choice = tl.where(kept != 0, choice, float("-inf"))
    places = tl.arange(0, K_PADDED)
    chosen = tl.zeros((K_PADDED,), dtype=tl.int32)
    chosen_scores = tl.zeros((K_PADDED,), dtype=tl.float32)
    total = 0.0
    for place in tl.static_range(K):
        expert = tl.argmax(choice, axis=0, tie_break_left=True)
        score = tl.sum(tl.where(experts == expert, scores, 0.0), axis=0)
        chosen = tl.where(places == place, expert, chosen)
        chosen_scores = tl.where(places == place, score, chosen_scores)
        choice = tl.where(experts == expert, float("-inf"), choice)
        total += score
    if NORMALIZE:
        chosen_scores = chosen_scores / (total + 1e-20)  # the epsilon of DeepSeek's published gate
    tl.store(ids + row * K + places, chosen.to(tl.int64), mask=places < K)
    tl.store(weights + row * K + places, chosen_scores * scale, mask=places < K)
