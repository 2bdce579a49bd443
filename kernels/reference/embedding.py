"""Rows of an embedding table."""

from torch import Tensor

__all__ = ["embedding"]


def embedding(ids: Tensor, table: Tensor) -> Tensor:
    """`table` [vocabulary, width] at `ids` int64 [rows]: [rows, width]."""
    return table.index_select(0, ids)
