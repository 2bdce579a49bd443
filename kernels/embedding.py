"""Rows of an embedding table on the GPU."""
# mypy: allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["embedding"]


def embedding(ids: Tensor, table: Tensor) -> Tensor:
    """`table` [vocabulary, width] at `ids` int64 [rows]: [rows, width]. Every id must be in the table."""
    assert table.is_contiguous()
    rows, width = ids.shape[0], table.shape[1]
    out = torch.empty((rows, width), dtype=table.dtype, device=table.device)
    if rows:
        _embedding_kernel[(rows, triton.cdiv(width, 2048))](ids, table, out, width, BLOCK=2048)
    return out


@triton.jit
def _embedding_kernel(ids, table, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < width
    source = table + tl.load(ids + row) * width
    tl.store(out + row.to(tl.int64) * width + columns, tl.load(source + columns, mask=mask), mask=mask)
