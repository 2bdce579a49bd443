"""Reads rows of a token bitmask: which ids a grammar lets through."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["MaskedIds", "read_bitmask"]


@dataclass(frozen=True, slots=True)
class MaskedIds:
    """One row of a bitmask as the shorter of two lists: the ids it allows, or those it bars. Ascending."""

    ids: NDArray[np.int64]
    allowed: bool


def read_bitmask(bitmask: NDArray[np.int32], size: int) -> list[MaskedIds | None]:
    """The rows of `bitmask` [rows, ceil(size / 32)]; bit i % 32 of word i // 32 is set where id i is allowed.

    None stands for a row that allows every id. Only words with bits of the rarer kind are unpacked, so a row that
    allows few or nearly all ids costs next to nothing.
    """
    num_rows, num_words = bitmask.shape
    assert num_words == -(-size // 32)
    real = np.full(num_words, 0xFFFFFFFF, dtype="<u4")
    if size % 32:
        real[-1] = (1 << size % 32) - 1
    words = bitmask.astype("<i4", copy=False).view("<u4") & real
    num_allowed = np.bitwise_count(words).sum(axis=1)
    mostly_allowed = num_allowed * 2 > size
    words[mostly_allowed] ^= real
    return [
        None if num_allowed[row] == size else MaskedIds(_set_bits(words[row]), not mostly_allowed[row])
        for row in range(num_rows)
    ]


def _set_bits(words: NDArray[np.uint32]) -> NDArray[np.int64]:
    """The numbers of the set bits of `words`, ascending."""
    filled: NDArray[np.int64] = words.nonzero()[0]
    if len(filled) * 2 > len(words):
        return _set_in_order(words)
    found = _set_in_order(words[filled])
    first: NDArray[np.int64] = filled[found >> 5] * 32
    return first + (found & 31)


def _set_in_order(words: NDArray[np.uint32]) -> NDArray[np.int64]:
    bits: NDArray[np.bool_] = np.unpackbits(words.view(np.uint8), bitorder="little").view(np.bool_)
    return bits.nonzero()[0]
