"""The Triton kernels on a GPU: against their twins, and row for row the same bits however many rows there are."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from drawloom.kernels import (  # noqa: E402
    embedding,
    log_softmax,
    matmul,
    matmul_table,
    matmul_tuning,
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
from drawloom.kernels.reference import moe as reference_moe  # noqa: E402
from drawloom.kernels.reference import philox as reference_philox  # noqa: E402
from drawloom.kernels.reference import rms_norm as reference_rms_norm  # noqa: E402
from drawloom.kernels.reference import rope as reference_rope  # noqa: E402
from drawloom.kernels.reference import sampling as reference_sampling  # noqa: E402
from drawloom.kernels.reference.mla_decode import mla_decode as reference_mla_decode  # noqa: E402

SCALE = 0.05


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    torch.manual_seed(0)
    yield


def random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=dtype)


def relative_error(got: Tensor, want: Tensor) -> float:
    return float((got.double() - want.double()).norm() / want.double().norm())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("rows", [1, 7, 32, 100, 512, 1000])
def test_every_member_of_the_product_has_the_same_bits(rows: int, dtype: torch.dtype) -> None:
    x, weight, residual = random(rows, 1408), random(576, 1408), random(rows, 576).to(dtype)
    want = torch.full((rows, 576), torch.nan, device="cuda", dtype=dtype)
    matmul.run_member(matmul_table.REFERENCE, x, weight, want, residual)
    assert relative_error(want, x.double() @ weight.double().t() + residual.double()) < 3e-3
    members = matmul_tuning.candidates(rows, 576, 1408, dtype)
    assert {type(member).__name__ for member in members} == {"TritonMember", "LtAlgorithm"}
    for member in members:
        out = torch.full_like(want, torch.nan)
        matmul.run_member(member, x, weight, out, residual)
        assert torch.equal(out, want), member


@pytest.mark.parametrize(("out_features", "in_features"), [(2048, 2048), (576, 7168), (64, 2048), (2048, 10944)])
def test_rows_of_a_product_do_not_depend_on_their_number(out_features: int, in_features: int) -> None:
    packed, x = matmul.pack_weight(random(out_features, in_features)), random(700, in_features)
    want = matmul.matmul(x, packed)
    for rows in (1, 2, 3, 8, 9, 16, 17, 33, 64, 65, 128, 129, 257, 512, 513):
        assert torch.equal(matmul.matmul(x[:rows], packed), want[:rows]), rows


def test_torch_does_not_keep_the_rows() -> None:
    """The positive control: this machine's plain product gives a row other bits in another batch."""
    weight, x = random(2048, 7168), random(512, 7168)
    packed = matmul.pack_weight(weight, invariant=False)
    want = matmul.matmul(x, packed)
    assert not all(torch.equal(matmul.matmul(x[:rows], packed), want[:rows]) for rows in (1, 32, 96, 128, 160))


def attention_problem(heads: int) -> tuple[list[list[int]], list[int], Tensor, Tensor]:
    lengths = [4000, 70, 9, 5000, 257]
    order = torch.randperm(200).tolist()
    tables = [[order.pop() for _ in range(-(-length // 64))] for length in lengths]
    return tables, lengths, random(200, 64, 576), random(8 * len(lengths), heads, 576)


@pytest.mark.parametrize("heads", [16, 20, 32, 128])
def test_decode_verification_and_prefill_have_the_same_bits(heads: int) -> None:
    tables, lengths, cache, q = attention_problem(heads)
    per_sequence = q.view(len(lengths), 8, heads, 576)

    def run(query_len: int, cut: int = 0) -> Tensor:
        shorter = [length - cut for length in lengths]
        plan = mla_plan.plan_mla(tables, shorter, [query_len] * len(lengths), num_heads=heads, device="cuda")
        asked = per_sequence[:, 8 - cut - query_len : 8 - cut].flatten(0, 1)
        out = mla_decode.mla_decode(asked, cache, plan, scale=SCALE, latent_dim=512)
        if cut == 0 and query_len == 8:
            error = relative_error(out, reference_mla_decode(asked, cache, plan, scale=SCALE, latent_dim=512))
            assert error < 5e-3
        return out.view(len(lengths), query_len, heads, 512)

    want = run(8)
    for query_len in (1, 2, 5):
        for cut in (0, 1, 3):
            assert torch.equal(run(query_len, cut), want[:, 8 - cut - query_len : 8 - cut])


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("tma", [False, True])
def test_every_cut_of_the_keys_has_the_same_bits(swap: bool, tma: bool) -> None:
    tables, lengths, cache, q = attention_problem(16)
    plan = mla_plan.plan_mla(tables, lengths, [1] * len(lengths), num_heads=16, device="cuda")
    want = mla_decode.mla_decode(q[::8], cache, plan, scale=SCALE, latent_dim=512, config=mla_decode.MlaConfig(0))
    for fold in (0, 1, 2):
        for warps in (4, 8):
            config = mla_decode.MlaConfig(fold, swap, tma, warps, 2)
            assert torch.equal(
                mla_decode.mla_decode(q[::8], cache, plan, scale=SCALE, latent_dim=512, config=config), want
            ), config


@pytest.mark.parametrize("tokens", [1, 5, 40, 300])
def test_expert_rows_have_the_bits_of_a_product(tokens: int) -> None:
    weights = random(64, 2816, 2048) / 45
    ids = torch.rand(tokens, 64, device="cuda").topk(6, -1).indices
    order, offsets = moe_permute.moe_permute(ids, 64)
    want_order, want_offsets = reference_moe.moe_permute(ids.cpu(), 64)
    assert torch.equal(order.cpu(), want_order) and torch.equal(offsets.cpu(), want_offsets)
    x = random(tokens, 2048)[order // 6]
    got = moe_grouped_gemm.moe_grouped_gemm(x, weights, offsets)
    bounds = offsets.tolist()
    for expert in range(64):
        rows = slice(bounds[expert], bounds[expert + 1])
        if rows.start < rows.stop:
            assert torch.equal(got[rows], matmul.matmul(x[rows], matmul.pack_weight(weights[expert])))
    fused = moe_grouped_gemm.moe_grouped_gemm(x, weights, offsets, swiglu=True)
    assert torch.equal(fused, swiglu.swiglu(got))
    assert relative_error(fused.cpu(), reference_moe.swiglu(got.cpu())) < 5e-3
    most = int(offsets.diff().max())
    padded = x.new_zeros(64, most, 2048)
    for expert in range(64):
        padded[expert, : bounds[expert + 1] - bounds[expert]] = x[bounds[expert] : bounds[expert + 1]]
    masked = moe_grouped_gemm.moe_grouped_gemm_masked(padded, weights, offsets.diff())
    kept = torch.arange(most, device="cuda") < offsets.diff()[:, None]
    assert torch.equal(masked[kept], got)
    combine_weights = torch.rand(tokens, 6, device="cuda")
    combined = moe_permute.moe_combine(fused, order, combine_weights)
    assert torch.equal(combined.cpu(), reference_moe.moe_combine(fused.cpu(), order.cpu(), combine_weights.cpu()))


def test_gate_chooses_as_its_twin() -> None:
    logits, bias = random(333, 256, dtype=torch.float32), random(256, dtype=torch.float32) * 0.1
    logits[5] = 0.25
    for options in (
        {"k": 6, "scoring": "softmax", "normalize": False, "scale": 1.0},
        {"k": 8, "scoring": "sigmoid", "bias": bias, "num_groups": 8, "top_groups": 4, "group_score": "top2",
         "normalize": True, "scale": 2.5},
    ):  # fmt: skip
        ids, weights = moe_gate.moe_gate(logits, **options)  # type: ignore[arg-type]
        if "bias" in options:
            options["bias"] = bias.cpu()
        want_ids, want_weights = reference_moe.moe_gate(logits.cpu(), **options)  # type: ignore[arg-type]
        assert torch.equal(ids.cpu(), want_ids) and relative_error(weights.cpu(), want_weights) < 1e-6


def test_small_kernels_equal_their_twins() -> None:
    x, residual, weight = random(300, 2048), random(300, 2048), random(2048)
    got = rms_norm.rms_norm(x, weight, 1e-6)
    assert relative_error(got, reference_rms_norm.rms_norm(x.double(), weight.double(), 1e-6)) < 3e-3
    assert torch.equal(rms_norm.rms_norm(x[7:8], weight, 1e-6), got[7:8])
    normed, total = rms_norm.add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(total, x + residual) and torch.equal(normed, rms_norm.rms_norm(total, weight, 1e-6))
    kv, latent_weight, turns = random(300, 576), random(512), random(300, 32, 2, dtype=torch.float32)
    turned = rope.apply_rope(kv[:, None, 512:], turns)
    assert torch.equal(turned.cpu(), reference_rope.apply_rope(kv[:, None, 512:].cpu(), turns.cpu()))
    cache, slots = (
        torch.full((6, 64, 576), torch.nan, device="cuda").bfloat16(),
        torch.randperm(384, device="cuda")[:300],
    )
    rope.write_latent(kv, latent_weight, 1e-6, turns, slots, cache)
    flat = cache.view(384, 576)
    assert torch.equal(flat[slots, :512], rms_norm.rms_norm(kv[:, :512], latent_weight, 1e-6))
    assert torch.equal(flat[slots, 512:], turned[:, 0]) and int(flat.isnan().all(1).sum()) == 84
    ids = torch.randint(0, 300, (40,), device="cuda")
    assert torch.equal(embedding.embedding(ids, x), x[ids])
    logits = random(5, 102400, dtype=torch.float32) * 4
    got = log_softmax.log_softmax(logits)
    assert (got - torch.log_softmax(logits.double(), -1)).abs().max() < 1e-5
    assert torch.equal(log_softmax.log_softmax(logits[3:4]), got[3:4])


def test_noise_and_draws_equal_the_twins() -> None:
    seed, position = 12345678901234567, 5_000_000_000
    want = reference_philox.philox_words(torch.tensor([seed]), torch.tensor([position]), torch.arange(1 << 17))
    words = sampling.philox_words(seed, position, 1 << 17, torch.device("cuda"))
    assert torch.equal(words.cpu(), want.to(torch.int64))
    rows, size = 24, 129280
    logits = random(rows, size, dtype=torch.float32) * 2
    heat = torch.tensor([1.0, 0.7, 0.0, 1.5] * 6, device="cuda")
    seeds, positions = torch.randint(0, 2**62, (rows,), device="cuda"), torch.randint(0, 9999, (rows,), device="cuda")
    mask = torch.randint(-(2**31), 2**31, (rows, size // 32), device="cuda").to(torch.int32)
    for bits in (None, mask):
        ids, logprobs = sampling.sample_tokens(logits, heat, seeds, positions, bits)
        arguments = (logits.cpu(), heat.cpu(), seeds.cpu(), positions.cpu(), None if bits is None else bits.cpu())
        want_ids, want_logprobs = reference_sampling.sample_tokens(*arguments)
        assert torch.equal(ids.cpu(), want_ids)
        assert torch.allclose(logprobs.cpu(), want_logprobs, atol=1e-5)
        alone = sampling.sample_tokens(
            logits[5:6], heat[5:6], seeds[5:6], positions[5:6], None if bits is None else bits[5:6]
        )
        assert torch.equal(alone[0], ids[5:6]) and torch.equal(alone[1], logprobs[5:6])
