"""Expert products on the GPU: rows sorted by expert, each group times its expert's weight.

Each tile keeps one fp32 accumulator and walks K in order, so a row's bits are those of `matmul` with its expert's
weight: they depend on neither the other rows nor the tile that `GroupedConfig` picks. With few rows the time is that of
reading the weights of the experts that were hit, so those are streamed by TMA with the rows on the matrix unit's narrow
side. Source of the layout: DeepGEMM (contiguous and masked groups).
"""
# mypy: allow-untyped-defs, allow-incomplete-defs

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

__all__ = ["GroupedConfig", "moe_grouped_gemm", "moe_grouped_gemm_masked"]


@dataclass(frozen=True)
class GroupedConfig:
    """A tile. No field changes a bit of the result."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    swap: bool = True


_BY_ROWS = (
    (1, GroupedConfig(16, 64, 128, 4, 5)),
    (8, GroupedConfig(16, 128, 128, 4, 3)),
    (24, GroupedConfig(32, 128, 64, 4, 5)),
    (64, GroupedConfig(64, 128, 64, 4, 4)),
)
_MANY_ROWS = GroupedConfig(128, 256, 64, 8, 3, swap=False)
_MANY_ROWS_FUSED = GroupedConfig(128, 128, 64, 8, 4, swap=False)  # two accumulators


def moe_grouped_gemm(
    x: Tensor, weights: Tensor, offsets: Tensor, *, swiglu: bool = False, config: GroupedConfig | None = None
) -> Tensor:
    """`x` [rows, in] sorted by expert times `weights` [experts, out, in] transposed, in bf16 with fp32 sums.

    Rows `offsets[e]` to `offsets[e + 1]` (int64 [experts + 1]) belong to expert e. With `swiglu` the first half of out
    is the gate and the second the up-projection, and the result [rows, out / 2] is silu(gate) * up, each rounded to
    bf16 first: the same bits as the product followed by `swiglu`. Otherwise [rows, out].
    """
    rows = x.shape[0]
    experts = weights.shape[0]
    most_tiles = min(experts, rows)
    chosen = config or _choose(rows // max(1, min(experts, rows)), swiglu)
    return _launch(x.contiguous(), weights, offsets, rows, most_tiles, 0, swiglu, chosen)


def moe_grouped_gemm_masked(
    x: Tensor, weights: Tensor, counts: Tensor, *, swiglu: bool = False, config: GroupedConfig | None = None
) -> Tensor:
    """As :func:`moe_grouped_gemm` for `x` [experts, max_rows, in]: the first `counts[e]` rows (int64) are used.

    Returns [experts, max_rows, out]; the rows beyond a group's count are left unset.
    """
    experts, max_rows, in_features = x.shape
    chosen = config or _choose(max_rows, swiglu)
    flat = x.contiguous().view(experts * max_rows, in_features)
    out = _launch(flat, weights, counts, experts * max_rows, experts, max_rows, swiglu, chosen)
    return out.view(experts, max_rows, -1)


def _choose(rows_per_expert: int, swiglu: bool) -> GroupedConfig:
    many = _MANY_ROWS_FUSED if swiglu else _MANY_ROWS
    return next((config for limit, config in _BY_ROWS if rows_per_expert <= limit), many)


def _launch(
    x: Tensor, weights: Tensor, offsets: Tensor, rows: int, most_tiles: int, max_rows: int,
    swiglu: bool, config: GroupedConfig,
) -> Tensor:  # fmt: skip
    experts, out_features, in_features = weights.shape
    assert x.shape[1] == in_features and weights.is_contiguous() and in_features % 8 == 0
    columns = out_features // 2 if swiglu else out_features
    out = torch.empty((rows, columns), dtype=x.dtype, device=x.device)
    if rows == 0:
        return out
    flat = weights.view(experts * out_features, in_features)
    x_tiles = TensorDescriptor.from_tensor(x, [config.block_m, config.block_k])
    w_tiles = TensorDescriptor.from_tensor(flat, [config.block_n, config.block_k])
    # A group of r rows takes at most 1 + (r - 1) / block_m tiles.
    tiles = most_tiles + rows // config.block_m
    _moe_grouped_gemm_kernel[(tiles * triton.cdiv(columns, config.block_n),)](
        x_tiles, w_tiles, out, offsets, columns, in_features,
        EXPERTS=experts, EXPERTS_PADDED=triton.next_power_of_2(experts), MAX_ROWS=max_rows,
        BLOCK_M=config.block_m, BLOCK_N=config.block_n, BLOCK_K=config.block_k, SWAP=config.swap, SWIGLU=swiglu,
        num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip
    return out


@triton.jit
def _moe_grouped_gemm_kernel(
    x, weights, out, offsets, N, K,
    EXPERTS: tl.constexpr, EXPERTS_PADDED: tl.constexpr, MAX_ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SWAP: tl.constexpr, SWIGLU: tl.constexpr,
):  # fmt: skip
    """One tile of out [rows, N]. weights [EXPERTS * N * (2 if SWIGLU else 1), K]; MAX_ROWS > 0: the masked layout."""
    num_n = tl.cdiv(N, BLOCK_N)
    tile = tl.program_id(0) // num_n
    n0 = tl.program_id(0) % num_n * BLOCK_N
    # Which expert's which tile this is: every program counts the tiles of all the groups.
    groups = tl.arange(0, EXPERTS_PADDED)
    real = groups < EXPERTS
    if MAX_ROWS > 0:
        counts = tl.load(offsets + groups, mask=real, other=0)
        starts = groups.to(tl.int64) * MAX_ROWS
    else:
        starts = tl.load(offsets + groups, mask=real, other=0)
        counts = tl.load(offsets + groups + 1, mask=real, other=0) - starts
    tiles = ((counts + BLOCK_M - 1) // BLOCK_M).to(tl.int32)
    ends = tl.cumsum(tiles, axis=0)
    if tile >= tl.max(ends, axis=0):
        return
    expert = tl.sum((ends <= tile).to(tl.int32), axis=0)
    mine = groups == expert
    before = tl.sum(tl.where(mine, ends - tiles, 0), axis=0)
    start = tl.sum(tl.where(mine, starts, 0), axis=0)
    end = start + tl.sum(tl.where(mine, counts, 0), axis=0)
    m0 = (start + (tile - before) * BLOCK_M).to(tl.int32)
    w0 = expert * (2 * N if SWIGLU else N) + n0

    if SWAP:
        acc = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    else:
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    if SWIGLU:
        acc_up = tl.zeros_like(acc)
    for k in range(0, K, BLOCK_K):
        a = x.load([m0, k])
        b = weights.load([w0, k])
        if SWAP:
            acc = tl.dot(b, tl.trans(a), acc)
        else:
            acc = tl.dot(a, tl.trans(b), acc)
        if SWIGLU:
            up = weights.load([w0 + N, k])
            if SWAP:
                acc_up = tl.dot(up, tl.trans(a), acc_up)
            else:
                acc_up = tl.dot(a, tl.trans(up), acc_up)
    if SWIGLU:
        gate = acc.to(out.dtype.element_ty).to(tl.float32)
        acc = gate / (1.0 + tl.exp(-gate)) * acc_up.to(out.dtype.element_ty).to(tl.float32)
    rows = m0.to(tl.int64) + tl.arange(0, BLOCK_M)
    cols = n0 + tl.arange(0, BLOCK_N)
    if SWAP:
        pointers = out + rows[None, :] * N + cols[:, None]
        mask = (rows < end)[None, :] & (cols < N)[:, None]
    else:
        pointers = out + rows[:, None] * N + cols[None, :]
        mask = (rows < end)[:, None] & (cols < N)[None, :]
    tl.store(pointers, acc.to(out.dtype.element_ty), mask=mask)
