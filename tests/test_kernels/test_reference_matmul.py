"""Row invariance of the CPU's linear products, in each of their layouts."""

import pytest
import torch

from drawloom.kernels.reference import matmul as module
from drawloom.kernels.reference.matmul import matmul, pack_weight

ROWS = [1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 64, 100, 129, 300]
SHAPES = [(576, 960), (1536, 576), (64, 128), (16, 24), (1100, 40)]
DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["reordered", "tiled"])
def test_a_row_has_the_same_bits_among_any_number_of_rows(
    kind: str, shape: tuple[int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "tiled":
        monkeypatch.setattr(module, "_reordered_is_invariant", lambda *_: False)
    torch.manual_seed(shape[0])
    width, out = shape
    x, residual = torch.randn(max(ROWS), width).to(dtype), torch.randn(max(ROWS), out).to(dtype)
    weight = torch.randn(out, width).to(dtype)
    packed = pack_weight(weight)
    if packed.kind != kind:
        pytest.skip("on this processor the library's product is not invariant for this shape, and is not used")
    assert packed.shape == (out, width)
    want, added = matmul(x, packed), matmul(x, packed, residual=residual)
    exact = x.double() @ weight.double().T
    bound = 1e-5 if dtype == torch.float32 else 1e-2
    assert (want.double() - exact).norm() / exact.norm() < bound
    assert (added.double() - exact - residual.double()).norm() / exact.norm() < bound
    for rows in ROWS:
        assert torch.equal(matmul(x[:rows], packed), want[:rows]), rows
        assert torch.equal(matmul(x[-rows:], packed), want[-rows:]), rows
        assert torch.equal(matmul(x[:rows], packed, residual=residual[:rows]), added[:rows]), rows
    assert matmul(x[:0], packed).shape == (0, out)


@pytest.mark.parametrize("kind", ["reordered", "tiled"])
@pytest.mark.parametrize("shape", [*SHAPES, (1, 24), (16, 1)])
def test_a_packed_weight_is_a_copy(kind: str, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading packs one weight after the other out of the same memory."""
    monkeypatch.setattr(module, "_reordered_is_invariant", lambda *_: kind == "reordered")
    width, out = shape
    x, weight = torch.randn(3, width), torch.randn(out, width)
    packed = pack_weight(weight)
    assert packed.kind == kind
    want = matmul(x, packed)
    weight.fill_(7.0)
    assert torch.equal(matmul(x, packed), want)


def test_the_plain_product_is_not_invariant() -> None:
    """The positive control: without the layouts above the bits of row 0 do move."""
    torch.manual_seed(0)
    x, packed = torch.randn(64, 1536), pack_weight(torch.randn(576, 1536), invariant=False)
    assert packed.kind == "plain"
    assert len({tuple(matmul(x[:rows], packed)[0].tolist()) for rows in (1, 2, 4, 16, 64)}) > 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_self_test_notices_another_order_of_summation(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """A product that sums in another order from 16 rows on gives the same bf16 numbers nearly always; not here."""
    original = module._linear

    def moody(x: torch.Tensor, packed: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        if len(x) < 16:
            return original(x, packed, residual)
        halves = x.float().split(x.shape[1] // 2, 1)
        dense = packed.to_dense().float().split(x.shape[1] // 2, 1)
        return sum((half @ part.T for half, part in zip(halves, dense, strict=True)), start=torch.zeros(())).to(x.dtype)

    monkeypatch.setattr(module, "_linear", moody)
    module._reordered_is_invariant.cache_clear()
    try:
        assert not module._reordered_is_invariant(576, 1536, dtype, 1)
    finally:
        module._reordered_is_invariant.cache_clear()
