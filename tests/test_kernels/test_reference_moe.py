"""Gate, permutation, grouped products and combination of experts on the CPU."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from drawloom.kernels.reference import moe as module
from drawloom.kernels.reference.matmul import matmul, pack_weight
from drawloom.kernels.reference.moe import moe_combine, moe_gate, moe_grouped_gemm, moe_permute, swiglu

ROWS = (1, 2, 3, 7, 16, 17, 64, 100)
DTYPES = [torch.float32, torch.bfloat16]
GATES: dict[str, dict[str, Any]] = {
    "v2 greedy": {"k": 6, "scoring": "softmax", "normalize": False, "scale": 1.0},
    "v2 groups": {
        "k": 6, "scoring": "softmax", "normalize": False, "scale": 16.0, "num_groups": 8, "top_groups": 3,
    },
    "v3": {
        "k": 8, "scoring": "sigmoid", "normalize": True, "scale": 2.5, "num_groups": 8, "top_groups": 4,
        "group_score": "top2",
    },
    "one group": {"k": 3, "scoring": "sigmoid", "normalize": True, "scale": 2.446},
    "unnormalised": {"k": 3, "scoring": "sigmoid", "normalize": False, "scale": 1.5},
}  # fmt: skip


def choose(scores: list[float], k: int) -> list[int]:
    return sorted(range(len(scores)), key=lambda index: (-scores[index], index))[:k]


def gate_by_hand(row: list[float], bias: list[float], gate: dict[str, Any]) -> tuple[list[int], list[float]]:
    """The published rule in plain Python, one row."""
    if gate["scoring"] == "softmax":
        total = sum(math.exp(x - max(row)) for x in row)
        scores = [math.exp(x - max(row)) / total for x in row]
    else:
        scores = [1 / (1 + math.exp(-x)) for x in row]
    choice = [score + extra for score, extra in zip(scores, bias, strict=True)]
    groups = gate.get("num_groups", 1)
    size = len(row) // groups
    best = [sorted(choice[g * size : (g + 1) * size], reverse=True) for g in range(groups)]
    group_scores = [sum(b[:2]) if gate.get("group_score") == "top2" else b[0] for b in best]
    open_groups = choose(group_scores, gate.get("top_groups", 1))
    allowed = [x if index // size in open_groups else -math.inf for index, x in enumerate(choice)]
    ids = choose(allowed, gate["k"])
    weights = [scores[index] for index in ids]
    norm = sum(weights) if gate["normalize"] else 1.0
    return ids, [weight / norm * gate["scale"] for weight in weights]


@pytest.mark.parametrize("name", GATES)
def test_the_gate_follows_the_published_rule(name: str) -> None:
    gate = GATES[name]
    torch.manual_seed(3)
    logits = torch.randn(60, 64) * 2
    bias = torch.randn(64) * 0.3 if gate["scoring"] == "sigmoid" else None
    ids, weights = moe_gate(logits, bias=bias, **gate)
    assert ids.dtype == torch.int64 and weights.dtype == torch.float32
    changed = 0
    for row in range(60):
        want_ids, want = gate_by_hand(logits[row].tolist(), [0.0] * 64 if bias is None else bias.tolist(), gate)
        assert ids[row].tolist() == want_ids
        assert weights[row].tolist() == pytest.approx(want, rel=1e-5)
        changed += want_ids != choose(logits[row].tolist(), gate["k"])
    assert changed > 0 or name == "v2 greedy"


def test_ties_go_to_the_smaller_id() -> None:
    logits = torch.tensor([[0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0]])
    plain, _ = moe_gate(logits, k=3, scoring="softmax", normalize=False, scale=1.0)
    assert plain.tolist() == [[1, 2, 4]]
    grouped, _ = moe_gate(
        torch.tensor([[0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0]]),
        k=3,
        scoring="sigmoid",
        num_groups=4,
        top_groups=2,
        group_score="top2",
        normalize=True,
        scale=1.0,
    )
    assert grouped.tolist() == [[1, 2, 0]], "four groups tie at 1: the first two win"
    equal, weights = moe_gate(torch.zeros(2, 8), k=4, scoring="softmax", normalize=False, scale=8.0)
    assert equal.tolist() == [[0, 1, 2, 3]] * 2 and weights.tolist() == [[1.0] * 4] * 2


def test_the_bias_chooses_but_does_not_weigh() -> None:
    logits, bias = torch.zeros(1, 4), torch.tensor([0.0, 0.0, 0.0, 5.0])
    ids, weights = moe_gate(logits, k=2, scoring="sigmoid", bias=bias, normalize=True, scale=2.0)
    assert ids.tolist() == [[3, 0]] and weights.tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize("name", GATES)
@pytest.mark.parametrize("experts", [24, 64])
def test_a_gate_row_has_the_same_bits_among_any_number_of_rows(name: str, experts: int) -> None:
    torch.manual_seed(4)
    gate = GATES[name]
    logits, bias = torch.randn(130, experts) * 3, torch.randn(experts) * 0.2
    want_ids, want = moe_gate(logits, bias=bias, **gate)
    for rows in ROWS:
        for start in (0, 29):
            ids, weights = moe_gate(logits[start : start + rows], bias=bias, **gate)
            assert torch.equal(ids, want_ids[start : start + rows])
            assert torch.equal(weights, want[start : start + rows])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [5, 33, 96, 1536])
def test_swiglu_is_invariant_and_right(width: int, dtype: torch.dtype) -> None:
    torch.manual_seed(5)
    x = (torch.randn(130, 2 * width) * 6).to(dtype)
    want = swiglu(x)
    gate, up = x[:, :width].double(), x[:, width:].double()
    bound = 1e-6 if dtype == torch.float32 else 1e-2
    exact = gate / (1 + (-gate).exp()) * up
    assert want.dtype == dtype and ((want - exact).abs() <= bound * exact.abs() + 1e-30).all()
    for rows in ROWS:
        for start in (0, 29):
            assert torch.equal(swiglu(x[start : start + rows]), want[start : start + rows]), rows


def test_swiglu_is_invariant_where_threads_share_a_row() -> None:
    """Three threads cut 100 · 1031 elements inside a row, where the library's own silu would change its loop."""
    torch.manual_seed(8)
    x = torch.randn(100, 2 * 1031) * 6
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        want = swiglu(x)
        assert all(torch.equal(swiglu(x[row : row + 1])[0], want[row]) for row in range(100))
    finally:
        torch.set_num_threads(before)


def test_swiglu_saturates_without_nan() -> None:
    x = torch.tensor([[-200.0, 200.0, 1.0, 1.0]])
    assert swiglu(x).tolist() == [[0.0, 200.0]]


def test_bf16_swiglu_without_the_library_s_silu(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(6)
    x = torch.randn(9, 64).bfloat16()
    library = swiglu(x).float()
    monkeypatch.setattr(module, "_library_silu_is_invariant", lambda _: False)
    own = swiglu(x)
    assert own.dtype == torch.bfloat16 and torch.allclose(own.float(), library, rtol=2e-2)
    assert torch.equal(swiglu(x[3:4]), own[3:4])


def moe_layer(x: Tensor, ids: Tensor, weights: Tensor, packed: list[Any], experts: int) -> Tensor:
    order, offsets = moe_permute(ids, experts)
    gathered = x.index_select(0, order.div(ids.shape[1], rounding_mode="floor"))
    return moe_combine(moe_grouped_gemm(gathered, packed, offsets), order, weights)


def test_permute_sorts_slots_stably_and_counts_idle_experts() -> None:
    order, offsets = moe_permute(torch.tensor([[4, 1], [1, 0], [4, 0]]), 6)
    assert order.tolist() == [3, 5, 1, 2, 0, 4]
    assert offsets.tolist() == [0, 2, 4, 4, 4, 6, 6]


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_expert_layer_is_invariant_and_right(dtype: torch.dtype) -> None:
    torch.manual_seed(7)
    experts, k, width, out = 8, 3, 48, 40
    matrices = [torch.randn(out, width).to(dtype) for _ in range(experts)]
    packed = [pack_weight(matrix) for matrix in matrices]
    x = torch.randn(130, width).to(dtype)
    ids = torch.stack([torch.randperm(experts)[:k] for _ in range(130)])
    weights = torch.rand(130, k)
    want = moe_layer(x, ids, weights, packed, experts)
    assert want.dtype == torch.float32
    for row in range(0, 130, 13):
        by_hand = torch.zeros(out)
        for expert, weight in zip(ids[row].tolist(), weights[row], strict=True):
            by_hand = by_hand + matmul(x[row : row + 1], packed[expert])[0].float() * weight
        assert torch.equal(want[row], by_hand), "summed in slot order, in fp32"
    for rows in ROWS:
        for start in (0, 29):
            part = slice(start, start + rows)
            assert torch.equal(moe_layer(x[part], ids[part], weights[part], packed, experts), want[part]), rows


def test_no_rows_give_no_rows() -> None:
    packed = [pack_weight(torch.randn(24, 16)) for _ in range(4)]
    empty = moe_layer(torch.empty(0, 16), torch.empty(0, 2, dtype=torch.int64), torch.empty(0, 2), packed, 4)
    assert empty.shape == (0, 24)
