"""The noise of sampling: a pure function of seed, position and token id.

Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011) with

    key      (seed low 32 bits, seed high 32 bits)
    counter  (token id // 4, position low 32 bits, position high 32 bits, 0)
    word     output[token id % 4]
    u        (word + 1/2) / 2**32
    g        float32(-log(-log1p(-u))), evaluated in float64

g has the standard Gumbel distribution, so argmax(l / T + g) draws from softmax(l / T). It is finest where winners lie
and bounded by GUMBEL_MIN and GUMBEL_MAX. The words are integers, the same on every device.

NumPy does the integer arithmetic, two to three times faster on a CPU than torch's 64-bit operations.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["GUMBEL_MAX", "GUMBEL_MIN", "gumbel", "gumbel_from_words", "philox_blocks", "philox_words"]

_FIRST_MULTIPLIER, _THIRD_MULTIPLIER = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_LOW_KEY_STEP, _HIGH_KEY_STEP = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_CHUNK = 16384  # columns at a time, so that the state stays in a core's own cache

_Numbers = NDArray[np.uint64]


def gumbel(seeds: Tensor, positions: Tensor, token_ids: Tensor) -> Tensor:
    """Gumbel noise, fp32 [N], for int64 `seeds`, `positions` and `token_ids`, each [N] or [1]. All are non-negative."""
    return gumbel_from_words(philox_words(seeds, positions, token_ids))


def philox_words(seeds: Tensor, positions: Tensor, token_ids: Tensor) -> Tensor:
    """The word of each token, uint32 [N]. Arguments as in :func:`gumbel`."""
    blocks = philox_blocks(seeds, positions, token_ids >> 2).numpy()
    return torch.from_numpy(blocks[(token_ids & 3).numpy(), np.arange(len(token_ids))])


def philox_blocks(seeds: Tensor, positions: Tensor, blocks: Tensor) -> Tensor:
    """The words of token ids 4b to 4b + 3 for each b of `blocks` [N], uint32 [4, N]. Arguments as in :func:`gumbel`."""
    key, place, index = (_unsigned(part) for part in (seeds, positions, blocks))
    words = np.empty((4, len(index)), dtype=np.uint32)
    for start in range(0, len(index), _CHUNK):
        part = slice(start, start + _CHUNK)
        _fill_blocks(_columns(key, part), _columns(place, part), index[part], words[:, part])
    return torch.from_numpy(words)


def gumbel_from_words(words: Tensor) -> Tensor:
    """g of each of `words` (uint32, any shape), fp32."""
    uniform = (words.numpy() + 0.5) * 2.0**-32
    return torch.from_numpy(-np.log(-np.log1p(-uniform))).to(torch.float32)


def _fill_blocks(key: _Numbers, place: _Numbers, index: _Numbers, out: NDArray[np.uint32]) -> None:
    """Write the words of blocks `index` to `out` [4, N]."""
    low_key, high_key = key & _LOW, key >> _HALF
    state = np.empty((6, len(index)), dtype=np.uint64)
    state[0], state[1], state[2], state[3] = index, place & _LOW, place >> _HALF, 0
    first, second, third, fourth, spare, other = state
    for _ in range(_ROUNDS):
        # The upper halves of second, fourth and the keys gather carries; what is multiplied has been cut to 32 bits.
        first *= _FIRST_MULTIPLIER
        third *= _THIRD_MULTIPLIER
        second ^= low_key
        fourth ^= high_key
        np.right_shift(third, _HALF, out=spare)
        np.right_shift(first, _HALF, out=other)
        spare ^= second
        other ^= fourth
        spare &= _LOW
        other &= _LOW
        first, second, third, fourth, spare, other = spare, third, other, first, second, fourth
        low_key += _LOW_KEY_STEP
        high_key += _HIGH_KEY_STEP
    out[0], out[1], out[2], out[3] = first, second, third, fourth  # this cuts to 32 bits as well


def _unsigned(values: Tensor) -> _Numbers:
    return values.numpy().view(np.uint64)


def _columns(values: _Numbers, part: slice) -> _Numbers:
    return values if len(values) == 1 else values[part]


def _bound(word: int) -> float:
    return gumbel_from_words(torch.tensor([word], dtype=torch.uint32)).item()


GUMBEL_MAX = _bound(0)
GUMBEL_MIN = _bound(2**32 - 1)
