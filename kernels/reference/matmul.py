"""Row-invariant linear products on the CPU.

A plain product changes a row's bits with the number of rows, because the library switches kernels. oneDNN's linear on a
reordered weight keeps one reduction order for every number of rows from 2 on. That is a property of the build and the
processor, not a promise, so each distinct shape is tested when its weight is packed; where the test fails the product
runs in tiles of 16 rows, which is invariant by construction.
"""

from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["PackedWeight", "matmul", "pack_weight"]

_TILE = 16
_TESTED_ROWS = (2, 3, 4, 6, 8, 12, 15, 16, 17, 21, 24, 31, 32, 33, 36, 40, 64, 129, 200)
_LARGE = 1 << 22  # weights beyond this are tested with fewer rows, so that loading stays quick


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight of `shape` (out, in), laid out for one way to multiply.

    `kind`: "reordered" (oneDNN blocked layout), "tiled" (fixed tiles of 16 rows) or "plain" (not row-invariant).
    """

    data: Tensor
    kind: Literal["reordered", "tiled", "plain"]
    shape: tuple[int, int]

    @property
    def dtype(self) -> torch.dtype:
        return self.data.dtype

    @property
    def nbytes(self) -> int:
        return self.shape[0] * self.shape[1] * self.data.element_size()


def pack_weight(weight: Tensor, *, invariant: bool = True) -> PackedWeight:
    """Lay out a copy of `weight` [out, in] (fp32 or bf16) for :func:`matmul`.

    `invariant=False` keeps the library's own product, whose bits depend on the number of rows, and need not copy.
    """
    out_features, in_features = weight.shape
    shape = (out_features, in_features)
    if not invariant:
        return PackedWeight(weight.contiguous(), "plain", shape)
    if not _reordered_is_invariant(out_features, in_features, weight.dtype, torch.get_num_threads()):
        return PackedWeight(weight.t().clone(memory_format=torch.contiguous_format), "tiled", shape)
    return PackedWeight(_reorder(weight), "reordered", shape)


def matmul(x: Tensor, weight: PackedWeight, *, residual: Tensor | None = None) -> Tensor:
    """`x` [rows, in] times `weight` [out, in] transposed, plus `residual` [rows, out]; in x's dtype, sums in fp32.

    A row's bits depend on that row alone, however many rows there are and wherever it stands.
    """
    if weight.kind == "plain":
        product = F.linear(x, weight.data)
        return product if residual is None else product + residual
    if x.shape[0] == 0:
        return x.new_empty((0, weight.shape[0]))
    if weight.kind == "tiled":
        return _tiled(x, weight.data, residual)
    if x.shape[0] > 1:
        return _linear(x, weight.data, residual)
    # One row is a class of its own: never let the library see it.
    two = None if residual is None else residual.expand(2, -1)
    return _linear(x.expand(2, -1), weight.data, two)[:1]


def _reorder(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _TILE)
    return packed


def _linear(x: Tensor, packed: Tensor, residual: Tensor | None) -> Tensor:
    product: Tensor
    if residual is None:
        product = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
    else:
        product = torch.ops.mkldnn._linear_pointwise.binary(x, residual, packed, None, "add")
    return product


def _tiled(x: Tensor, transposed: Tensor, residual: Tensor | None) -> Tensor:
    rows = x.shape[0]
    padded = F.pad(x, (0, 0, 0, -rows % _TILE))
    product = torch.cat([tile @ transposed for tile in padded.split(_TILE)])[:rows]
    return product if residual is None else product + residual


@cache
def _reordered_is_invariant(out_features: int, in_features: int, dtype: torch.dtype, num_threads: int) -> bool:
    """Compare the first rows of products with different numbers of rows, bit for bit. `num_threads` is a cache key."""
    del num_threads
    if not torch.backends.mkldnn.is_available():
        return False
    tested = (2, 3, 8, 15, 16, 17, 33, 64) if out_features * in_features > _LARGE else _TESTED_ROWS
    x, weight = _cancelling(max(tested), out_features, in_features, dtype)
    packed = _reorder(weight)
    want = _linear(x, packed, None)
    residual = torch.zeros_like(want)
    return all(torch.equal(_linear(x[:rows].contiguous(), packed, None), want[:rows]) for rows in tested) and all(
        torch.equal(_linear(x[:rows].contiguous(), packed, residual[:rows]), want[:rows]) for rows in (2, 17)
    )


def _cancelling(rows: int, out_features: int, in_features: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Rows and a weight whose products are zero but for rounding, so that another order of summation shows.

    On ordinary data the last rounding to bf16 hides it nearly always. The second half of a sum is the first one,
    negated and in another order.
    """
    generator = torch.Generator().manual_seed(out_features * 1_000_003 + in_features)
    half = in_features // 2
    order = torch.randperm(half, generator=generator)
    x, weight = torch.zeros(rows, in_features), torch.zeros(min(out_features, 512), in_features)
    x[:, :half] = torch.randn(rows, half, generator=generator)
    weight[:, :half] = torch.randn(len(weight), half, generator=generator)
    x[:, half : 2 * half] = -x[:, order]
    weight[:, half : 2 * half] = weight[:, order]
    return x.to(dtype), weight.to(dtype).repeat(-(-out_features // len(weight)), 1)[:out_features]
