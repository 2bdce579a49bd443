"""Row-invariant linear products on the GPU: every way to run one gives the same bits, so the fastest may be taken.

On Hopper in bf16 a product with one fp32 accumulator that walks K in order has the same bits whatever its tile, number
of warps, pipeline depth, matrix instruction, way of loading, and whichever operand is the wgmma's wide one. So a table
(`matmul_table`) may pick a member for each (rows, out, in) by time alone, and rows don't change with their number.
Splitting K leaves the class and is never done. Membership is a property of the hardware, not a promise: it is checked
bit for bit whenever a member is tuned.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs

from dataclasses import dataclass

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from .cublaslt import LtAlgorithm, cublaslt
from .matmul_table import Member, TritonMember, default_member, lookup

__all__ = ["PackedWeight", "matmul", "pack_weight", "run_member"]


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A bf16 weight [out, in] on the GPU. `invariant` False: multiplied by torch, whose bits depend on the rows."""

    data: Tensor
    invariant: bool

    @property
    def shape(self) -> tuple[int, int]:
        return self.data.shape[0], self.data.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        return self.data.dtype

    @property
    def nbytes(self) -> int:
        return self.data.numel() * self.data.element_size()


def pack_weight(weight: Tensor, *, invariant: bool = True) -> PackedWeight:
    """Take `weight` [out, in], bf16, for :func:`matmul`. The layout stays row-major."""
    assert weight.ndim == 2
    return PackedWeight(weight.contiguous(), invariant)


def matmul(
    x: Tensor, weight: PackedWeight, *, residual: Tensor | None = None, out_dtype: torch.dtype | None = None
) -> Tensor:
    """`x` [rows, in] times `weight` [out, in] transposed, plus `residual` [rows, out]; sums in fp32.

    x and weight are bf16; the result, and the residual, have `out_dtype` (bf16, the default, or fp32). A row's bits
    depend on that row alone. The fastest member that `matmul_table.tune_matmul` found is used, or a fixed one.
    """
    dtype = x.dtype if out_dtype is None else out_dtype
    if not weight.invariant:
        product = F.linear(x, weight.data).to(dtype)
        return product if residual is None else product + residual
    out = torch.empty((x.shape[0], weight.shape[0]), dtype=dtype, device=x.device)
    if x.shape[0] == 0:
        return out
    member = lookup(x.shape[0], *weight.shape, dtype)
    run_member(member or default_member(x.shape[0], *weight.shape), x.contiguous(), weight.data, out, residual)
    return out


def run_member(member: Member, x: Tensor, weight: Tensor, out: Tensor, residual: Tensor | None = None) -> None:
    """Compute `out` by the given member of the class. All tensors contiguous."""
    assert residual is None or (residual.dtype == out.dtype and residual.shape == out.shape)
    if isinstance(member, LtAlgorithm):
        library = cublaslt()
        assert library is not None
        library.matmul(x, weight, out, residual, member)
    else:
        _launch(member, x, weight, out, residual)


def _launch(member: TritonMember, x: Tensor, weight: Tensor, out: Tensor, residual: Tensor | None) -> None:
    rows, in_features = x.shape
    out_features = weight.shape[0]
    x_argument: Tensor | TensorDescriptor = x
    weight_argument: Tensor | TensorDescriptor = weight
    if member.tma:
        x_argument = TensorDescriptor.from_tensor(x, [member.block_m, member.block_k])
        weight_argument = TensorDescriptor.from_tensor(weight, [member.block_n, member.block_k])
    grid = (triton.cdiv(rows, member.block_m) * triton.cdiv(out_features, member.block_n),)
    _matmul_kernel[grid](
        x_argument, weight_argument, out, out if residual is None else residual, rows, out_features, in_features,
        BLOCK_M=member.block_m, BLOCK_N=member.block_n, BLOCK_K=member.block_k, GROUP_M=8, SWAP=member.swap,
        TMA=member.tma, EVEN_K=in_features % member.block_k == 0, HAS_RESIDUAL=residual is not None,
        num_warps=member.num_warps, num_stages=member.num_stages,
    )  # fmt: skip


@triton.jit(do_not_specialize=["M"])
def _matmul_kernel(
    x, weight, out, residual, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    SWAP: tl.constexpr, TMA: tl.constexpr, EVEN_K: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
):  # fmt: skip
    """One tile of out [M, N] = x [M, K] weight [N, K]^T. x and weight are tensor descriptors (TMA) or pointers."""
    pid = tl.program_id(0)
    num_m = tl.cdiv(M, BLOCK_M)
    num_n = tl.cdiv(N, BLOCK_N)
    # Neighbouring programs share tiles of both operands through the L2 cache.
    width = GROUP_M * num_n
    first_m = pid // width * GROUP_M
    size_m = tl.minimum(num_m - first_m, GROUP_M)
    m0 = (first_m + pid % width % size_m) * BLOCK_M
    n0 = pid % width // size_m * BLOCK_N
    rows = m0 + tl.arange(0, BLOCK_M)
    cols = n0 + tl.arange(0, BLOCK_N)
    if not TMA:
        ks = tl.arange(0, BLOCK_K)
        x_ptrs = x + rows.to(tl.int64)[:, None] * K + ks[None, :]
        w_ptrs = weight + cols.to(tl.int64)[:, None] * K + ks[None, :]
    if SWAP:
        acc = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    else:
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        if TMA:
            a = x.load([m0, k])
            b = weight.load([n0, k])
        else:
            x_mask = (rows < M)[:, None]
            w_mask = (cols < N)[:, None]
            if not EVEN_K:
                x_mask = x_mask & (ks < K - k)[None, :]
                w_mask = w_mask & (ks < K - k)[None, :]
            a = tl.load(x_ptrs + k, mask=x_mask, other=0.0)
            b = tl.load(w_ptrs + k, mask=w_mask, other=0.0)
        if SWAP:
            acc = tl.dot(b, tl.trans(a), acc)
        else:
            acc = tl.dot(a, tl.trans(b), acc)
    if SWAP:
        offsets = rows.to(tl.int64)[None, :] * N + cols[:, None]
        mask = (rows < M)[None, :] & (cols < N)[:, None]
    else:
        offsets = rows.to(tl.int64)[:, None] * N + cols[None, :]
        mask = (rows < M)[:, None] & (cols < N)[None, :]
    if HAS_RESIDUAL:
        acc += tl.load(residual + offsets, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + offsets, acc.to(out.dtype.element_ty), mask=mask)
