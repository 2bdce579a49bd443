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

_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], dtype=np.uint64)
_KEY_STEPS = np.array([[0x9E3779B9], [0xBB67AE85]], dtype=np.uint64)
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_CHUNK = 16384  # columns at a time, so that the state stays in a core's own cache

_Words = NDArray[np.uint64]


def gumbel(seeds: Tensor, positions: Tensor, token_ids: Tensor) -> Tensor:
    """Gumbel noise, fp32 [N], for int64 `seeds`, `positions` and `token_ids`, each [N] or [1]. All are non-negative."""
    return gumbel_from_words(philox_words(seeds, positions, token_ids))


def philox_words(seeds: Tensor, positions: Tensor, token_ids: Tensor) -> Tensor:
    """The word of each token, int64 [N], 0 <= word < 2**32. Arguments as in :func:`gumbel`."""
    blocks = philox_blocks(seeds, positions, token_ids >> 2)
    return blocks.gather(0, (token_ids & 3)[None])[0]


def philox_blocks(seeds: Tensor, positions: Tensor, blocks: Tensor) -> Tensor:
    """The words of token ids 4b to 4b + 3 for each b of `blocks` [N], int64 [4, N]. Arguments as in :func:`gumbel`."""
    key, place, index = (_unsigned(part) for part in (seeds, positions, blocks))
    words = np.empty((4, len(index)), dtype=np.uint64)
    for start in range(0, len(index), _CHUNK):
        part = slice(start, start + _CHUNK)
        _fill_blocks(_columns(key, part), _columns(place, part), index[part], words[:, part])
    return torch.from_numpy(words.view(np.int64))


def gumbel_from_words(words: Tensor) -> Tensor:
    """g of each of `words` (int64, any shape), fp32."""
    uniform = (words.numpy() + 0.5) * 2.0**-32
    return torch.from_numpy(-np.log(-np.log1p(-uniform))).to(torch.float32)


def _fill_blocks(key: _Words, place: _Words, index: _Words, out: _Words) -> None:
    """Write the words of blocks `index` to `out` [4, N]."""
    round_key = np.stack([key & _LOW, key >> _HALF])
    even = np.empty((2, len(index)), dtype=np.uint64)
    odd = np.empty_like(even)
    product = np.empty_like(even)
    even[0], even[1] = index, place >> _HALF  # counter words 0 and 2; `odd` holds 1 and 3
    odd[0], odd[1] = place & _LOW, 0
    for _ in range(_ROUNDS):
        # The upper halves of odd and round_key gather carries; the mask below cuts them off.
        np.multiply(even, _MULTIPLIERS, out=product)
        np.right_shift(product, _HALF, out=even)
        odd ^= round_key
        round_key += _KEY_STEPS
        odd ^= even[::-1]
        odd &= _LOW
        even, odd, product = odd, product[::-1], even
    out[0], out[2] = even
    np.bitwise_and(odd, _LOW, out=out[1::2])


def _unsigned(values: Tensor) -> _Words:
    return values.numpy().view(np.uint64)


def _columns(values: _Words, part: slice) -> _Words:
    return values if len(values) == 1 else values[part]


def _bound(word: int) -> float:
    return gumbel_from_words(torch.tensor([word])).item()


GUMBEL_MAX = _bound(0)
GUMBEL_MIN = _bound(2**32 - 1)
