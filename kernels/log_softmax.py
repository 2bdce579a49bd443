"""Log-softmax of rows on the GPU: fixed chunks of a row in parallel, merged in one order."""
# mypy: allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["log_softmax"]

_CHUNK = 4096


def log_softmax(logits: Tensor) -> Tensor:
    """log(softmax) of `logits` fp32 [rows, width] along each row, fp32. -inf entries stay -inf; one must be finite."""
    assert logits.dtype == torch.float32 and logits.ndim == 2
    logits = logits.contiguous()
    rows, width = logits.shape
    out = torch.empty_like(logits)
    chunks = triton.cdiv(width, _CHUNK)
    stats = torch.empty((rows, chunks, 2), dtype=torch.float32, device=logits.device)
    if rows:
        grid = (rows, chunks)
        _chunk_stats_kernel[grid](logits, stats, width, chunks, CHUNK=_CHUNK, num_warps=8)
        _log_softmax_kernel[grid](
            logits, stats, out, width, chunks, CHUNK=_CHUNK, CHUNKS=triton.next_power_of_2(chunks), num_warps=8
        )
    return out


@triton.jit
def _chunk_stats_kernel(logits, stats, width, chunks, CHUNK: tl.constexpr):
    """(maximum, sum of exp(x - maximum)) of one chunk of one row."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    columns = chunk * CHUNK + tl.arange(0, CHUNK)
    x = tl.load(logits + row * width + columns, mask=columns < width, other=float("-inf"))
    top = tl.max(x, axis=0)
    total = tl.sum(tl.exp(x - tl.where(top == float("-inf"), 0.0, top)), axis=0)
    tl.store(stats + (row * chunks + chunk) * 2, top)
    tl.store(stats + (row * chunks + chunk) * 2 + 1, total)


@triton.jit
def _log_softmax_kernel(logits, stats, out, width, chunks, CHUNK: tl.constexpr, CHUNKS: tl.constexpr):
    """One chunk of one row of the result."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    x = tl.load(logits + row * width + columns, mask=columns < width, other=float("-inf"))
    top, total = _merge_stats(stats + row * chunks * 2, chunks, CHUNKS)
    tl.store(out + row * width + columns, (x - top) - tl.log(total), mask=columns < width)


@triton.jit
def _merge_stats(stats, chunks, CHUNKS: tl.constexpr):
    """The row's maximum and its sum of exp(x - maximum)."""
    index = tl.arange(0, CHUNKS)
    tops = tl.load(stats + index * 2, mask=index < chunks, other=float("-inf"))
    totals = tl.load(stats + index * 2 + 1, mask=index < chunks, other=0.0)
    top = tl.max(tops, axis=0)
    return top, tl.sum(totals * tl.exp(tops - top), axis=0)
