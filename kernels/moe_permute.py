"""Sort tokens by expert, and sum the experts' results, on the GPU: integer work and sums in slot order, no atomics."""
# mypy: allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["moe_combine", "moe_permute"]


def moe_permute(ids: Tensor, num_experts: int) -> tuple[Tensor, Tensor]:
    """Sort the flat slots of `ids` [rows, k] by expert, stably.

    Returns `order` int64 [rows * k], the slot (row * k + place) at each sorted position, and `offsets` int64
    [num_experts + 1]: expert e owns the sorted positions offsets[e] to offsets[e + 1].
    """
    flat = ids.reshape(-1)
    slots = flat.shape[0]
    order = torch.empty((slots,), dtype=torch.int64, device=ids.device)
    offsets = torch.empty((num_experts + 1,), dtype=torch.int64, device=ids.device)
    block = min(4096, max(128, triton.next_power_of_2(slots)))
    _moe_permute_kernel[(num_experts,)](flat, order, offsets, slots, BLOCK=block, num_warps=8 if block > 1024 else 4)
    return order, offsets


def moe_combine(y: Tensor, order: Tensor, weights: Tensor) -> Tensor:
    """Weighted sum of each row's k expert results: fp32 [rows, width], summed in slot order in fp32.

    `y` [rows * k, width] sorted by expert, `order` of :func:`moe_permute`, `weights` fp32 [rows, k]. The twin's bits.
    """
    rows, k = weights.shape
    width = y.shape[1]
    out = torch.empty((rows, width), dtype=torch.float32, device=y.device)
    if rows == 0:
        return out
    positions = torch.empty((rows * k,), dtype=torch.int32, device=y.device)
    _invert_kernel[(triton.cdiv(rows * k, 1024),)](order, positions, rows * k, BLOCK=1024)
    block = 1024 if rows < 256 else 2048
    # Without fused multiply-add, so that products are rounded as the twin rounds them.
    _moe_combine_kernel[(rows, triton.cdiv(width, block))](
        y.contiguous(), positions, weights.contiguous(), out, width, K=k, BLOCK=block, enable_fp_fusion=False
    )
    return out


@triton.jit(do_not_specialize=["slots"])
def _moe_permute_kernel(ids, order, offsets, slots, BLOCK: tl.constexpr):
    """The slots of one expert: count those of smaller experts, then write this one's in slot order."""
    expert = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    smaller = tl.zeros((BLOCK,), dtype=tl.int32)
    same = tl.zeros((BLOCK,), dtype=tl.int32)
    for start in range(0, slots, BLOCK):
        found = tl.load(ids + start + lanes, mask=start + lanes < slots, other=1 << 30).to(tl.int32)
        smaller += (found < expert).to(tl.int32)
        same += (found == expert).to(tl.int32)
    first = tl.sum(smaller, axis=0)
    tl.store(offsets + expert, first.to(tl.int64))
    if expert == tl.num_programs(0) - 1:
        tl.store(offsets + expert + 1, (first + tl.sum(same, axis=0)).to(tl.int64))
    for start in range(0, slots, BLOCK):
        found = tl.load(ids + start + lanes, mask=start + lanes < slots, other=1 << 30).to(tl.int32)
        mine = (found == expert).to(tl.int32)
        places = first + tl.cumsum(mine, axis=0) - 1
        tl.store(order + places, (start + lanes).to(tl.int64), mask=mine != 0)
        first += tl.sum(mine, axis=0)


@triton.jit(do_not_specialize=["count"])
def _invert_kernel(order, positions, count, BLOCK: tl.constexpr):
    """positions[order[i]] = i."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slots = tl.load(order + places, mask=places < count, other=0)
    tl.store(positions + slots, places, mask=places < count)


@triton.jit
def _moe_combine_kernel(y, positions, weights, out, width, K: tl.constexpr, BLOCK: tl.constexpr):
    """A block of one row of out: the row's K results, first slot first."""
    row = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < width
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for slot in tl.static_range(K):
        place = tl.load(positions + row * K + slot).to(tl.int64)
        weight = tl.load(weights + row * K + slot)
        term = tl.load(y + place * width + columns, mask=mask, other=0.0).to(tl.float32) * weight
        if slot == 0:
            total = term
        else:
            total += term
    tl.store(out + row.to(tl.int64) * width + columns, total, mask=mask)
