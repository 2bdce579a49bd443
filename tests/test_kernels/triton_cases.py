"""Each Triton kernel against its twin at small shapes, in Triton's interpreter. Run by test_triton_interpreter.py.

The interpreter must be chosen before Triton is imported, hence a process of its own. It computes `tl.dot` wrongly in
bf16, so the cases use fp16 and fp32. Prints one JSON object: the name of each case and its error message, or null.
"""

import json
import os
import sys
import traceback

os.environ["TRITON_INTERPRET"] = "1"

import torch  # noqa: E402

from drawloom.kernels import (  # noqa: E402
    embedding,
    log_softmax,
    matmul,
    mla_decode,
    mla_plan,
    moe_gate,
    moe_grouped_gemm,
    moe_permute,
    rms_norm,
    rope,
    sampling,
    swiglu,
)
from drawloom.kernels.matmul_table import TritonMember  # noqa: E402
from drawloom.kernels.reference import log_softmax as reference_log_softmax  # noqa: E402
from drawloom.kernels.reference import mla_decode as reference_mla  # noqa: E402
from drawloom.kernels.reference import moe as reference_moe  # noqa: E402
from drawloom.kernels.reference import philox as reference_philox  # noqa: E402
from drawloom.kernels.reference import rms_norm as reference_rms_norm  # noqa: E402
from drawloom.kernels.reference import rope as reference_rope  # noqa: E402
from drawloom.kernels.reference import sampling as reference_sampling  # noqa: E402


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.double() - want.double()).norm() / want.double().norm())


def case_matmul() -> None:
    x, weight, residual = torch.randn(19, 96).half(), torch.randn(80, 96).half(), torch.randn(19, 80)
    want = x.double() @ weight.double().t() + residual
    for swap in (False, True):
        for tma in (False, True):
            out = torch.full((19, 80), torch.nan)
            matmul.run_member(TritonMember(16, 32, 64, 4, 2, swap, tma), x, weight, out, residual)
            assert relative_error(out, want) < 1e-6


def case_mla_decode() -> None:
    tables, lengths, query_lens = [[3], [5, 1, 7, 2, 6, 0], [4]], [5, 330, 64], [1, 2, 1]
    cache, q = torch.randn(8, 64, 48), torch.randn(4, 3, 48)
    plan = mla_plan.plan_mla(tables, lengths, query_lens, num_heads=3, device="cpu")
    want = reference_mla.mla_decode(q, cache, plan, scale=0.1, latent_dim=32)
    results = [
        mla_decode.mla_decode(q, cache, plan, scale=0.1, latent_dim=32, config=mla_decode.MlaConfig(fold, swap, tma))
        for fold, swap, tma in ((0, True, True), (1, False, True), (2, True, False))
    ]
    assert relative_error(results[0], want) < 1e-6
    assert all(torch.equal(result, results[0]) for result in results)


def case_moe_grouped_gemm() -> None:
    counts = [3, 0, 20, 1]
    offsets = torch.tensor([0, 3, 3, 23, 24])
    x, weights = torch.randn(24, 64).half(), (torch.randn(4, 96, 64) / 8).half()
    want = torch.cat([x[a:b].double() @ weights[e].double().t() for e, (a, b) in enumerate(offsets.unfold(0, 2, 1))])
    padded = torch.zeros(4, 20, 64).half()
    for expert, count in enumerate(counts):
        padded[expert, :count] = x[offsets[expert] : offsets[expert + 1]]
    for swap in (False, True):
        config = moe_grouped_gemm.GroupedConfig(16, 32, 32, 4, 2, swap)
        got = moe_grouped_gemm.moe_grouped_gemm(x, weights, offsets, config=config)
        assert relative_error(got, want) < 1e-3
        fused = moe_grouped_gemm.moe_grouped_gemm(x, weights, offsets, swiglu=True, config=config)
        assert torch.equal(fused, swiglu.swiglu(got))
        assert relative_error(fused, reference_moe.swiglu(got)) < 1e-3
        masked = moe_grouped_gemm.moe_grouped_gemm_masked(padded, weights, torch.tensor(counts), config=config)
        assert torch.equal(torch.cat([masked[e, :count] for e, count in enumerate(counts)]), got)


def case_moe_gate() -> None:
    logits, bias = torch.randn(9, 48), torch.randn(48) * 0.1
    logits[3] = 0.5  # all scores are equal
    for options in (
        {"scoring": "softmax", "normalize": False, "scale": 1.0},
        {"scoring": "softmax", "num_groups": 4, "top_groups": 2, "normalize": False, "scale": 16.0},
        {"scoring": "sigmoid", "bias": bias, "num_groups": 4, "top_groups": 2, "group_score": "top2",
         "normalize": True, "scale": 2.5},
    ):  # fmt: skip
        ids, weights = moe_gate.moe_gate(logits, k=5, **options)  # type: ignore[arg-type]
        want_ids, want_weights = reference_moe.moe_gate(logits, k=5, **options)  # type: ignore[arg-type]
        assert torch.equal(ids, want_ids)
        assert relative_error(weights, want_weights) < 1e-6


def case_moe_permute() -> None:
    ids = torch.randint(0, 7, (50, 3))  # 150 slots: more than a block
    order, offsets = moe_permute.moe_permute(ids, 8)
    want_order, want_offsets = reference_moe.moe_permute(ids, 8)
    assert torch.equal(order, want_order) and torch.equal(offsets, want_offsets)
    y, weights = torch.randn(150, 40).half(), torch.rand(50, 3)
    assert torch.equal(moe_permute.moe_combine(y, order, weights), reference_moe.moe_combine(y, order, weights))


def case_rms_norm() -> None:
    x, residual, weight = torch.randn(5, 96).half(), torch.randn(5, 96).half(), torch.randn(96).half()
    got = rms_norm.rms_norm(x, weight, 1e-6)
    assert relative_error(got, reference_rms_norm.rms_norm(x.float(), weight.float(), 1e-6)) < 1e-3
    normed, total = rms_norm.add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(total, x + residual) and torch.equal(normed, rms_norm.rms_norm(total, weight, 1e-6))


def case_rope() -> None:
    kv, weight, turns = torch.randn(5, 48).half(), torch.randn(32).half(), torch.randn(5, 8, 2)
    turned = rope.apply_rope(kv[:, None, 32:], turns)
    assert torch.equal(turned, reference_rope.apply_rope(kv[:, None, 32:], turns))
    cache, slots = torch.full((3, 4, 48), torch.nan).half(), torch.tensor([0, 11, 3, 5, 7])
    rope.write_latent(kv, weight, 1e-6, turns, slots, cache)
    flat = cache.view(12, 48)
    assert torch.equal(flat[slots, :32], rms_norm.rms_norm(kv[:, :32], weight, 1e-6))
    assert torch.equal(flat[slots, 32:], turned[:, 0])
    assert int(flat.isnan().all(1).sum()) == 12 - 5


def case_embedding() -> None:
    table, ids = torch.randn(20, 70), torch.tensor([3, 3, 19])
    assert torch.equal(embedding.embedding(ids, table), table[ids])


def case_log_softmax() -> None:
    logits = torch.randn(3, 9000) * 5
    logits[1, :5000] = -torch.inf
    got, want = log_softmax.log_softmax(logits), reference_log_softmax.log_softmax(logits)
    assert torch.equal(got.isinf(), want.isinf())
    assert (got - want)[want.isfinite()].abs().max() < 1e-5


def case_philox() -> None:
    seed, position = 12345678901234567, 5_000_000_000
    want = reference_philox.philox_words(torch.tensor([seed]), torch.tensor([position]), torch.arange(2048))
    assert torch.equal(sampling.philox_words(seed, position, 2048, torch.device("cpu")), want.to(torch.int64))


def case_sampling() -> None:
    logits = torch.randn(6, 9000) * 3
    logits[4] = -torch.inf
    logits[2, 5:8] = 20.0  # a tie, in a greedy row
    mask = torch.randint(-(2**31), 2**31, (6, 282)).to(torch.int32)
    heat = torch.tensor([1.0, 0.5, 0.0, 2.0, 1.0, 0.01])
    seeds, positions = torch.randint(0, 2**62, (6,)), torch.randint(0, 10000, (6,))
    entries = torch.tensor([0, 0, 1]), torch.tensor([3, 4, 3]), torch.tensor([1.0, 0.0, -2.0])
    penalties = torch.tensor([1.2, 1.3, 1.0]), torch.tensor([0.0, 0.5, 0.1])
    changed = logits.clone()
    sampling.adjust_logits(logits, *entries, *penalties)
    reference_sampling.adjust_logits(changed, *entries, *penalties)
    assert torch.equal(logits, changed)
    for bits in (None, mask):
        ids, logprobs = sampling.sample_tokens(logits, heat, seeds, positions, bits)
        want_ids, want_logprobs = reference_sampling.sample_tokens(logits, heat, seeds, positions, bits)
        assert torch.equal(ids, want_ids) and ids[4] == -1
        assert torch.allclose(logprobs, want_logprobs, atol=1e-5, equal_nan=True)


CASES = {name.removeprefix("case_"): case for name, case in list(globals().items()) if name.startswith("case_")}


def main() -> None:
    failures: dict[str, str | None] = {}
    for name, case in CASES.items():
        torch.manual_seed(0)
        try:
            case()
            failures[name] = None
        except Exception:
            failures[name] = traceback.format_exc()
    json.dump(failures, sys.stdout)


if __name__ == "__main__":
    main()
