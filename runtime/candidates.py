"""The cuts of sampling (top-k, top-p, min-p) and the largest entries of a row, without sorting the vocabulary.

Larger values come first and ties go to the smaller index, always, so the outcome is a function of the row alone.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray

from .sampling_params import SamplingParams

__all__ = ["exponential", "kept_by_cuts", "largest"]

_Row = NDArray[np.float32]
_Indices = NDArray[np.int64]


def largest(values: _Row, count: int) -> _Indices:
    """Indices of the `count` largest of `values` (no NaN), the largest first; of all if there are fewer."""
    if count >= len(values):
        return descending(values, np.arange(len(values)))
    return descending(values, _where(values >= _lower_bound(values, count)))[:count]


def descending(values: _Row, indices: _Indices) -> _Indices:
    """`indices` (below 2**32) in the order of `values` there, the largest first."""
    # One integer sort of (value, index): the bits of a float, complemented where needed, count like the numbers.
    bits = (values[indices] + np.float32(0)).view(np.int32)  # + 0 makes -0 and 0 the same
    keys = (bits ^ (~(bits >> 31) & 0x7FFFFFFF)).view(np.uint32).astype(np.uint64) << np.uint64(32)
    keys |= indices.view(np.uint64)
    keys.sort()
    return (keys & np.uint64(0xFFFFFFFF)).view(np.int64)


def kept_by_cuts(scaled: _Row, best: int, params: SamplingParams) -> _Indices | None:
    """Which indices of `scaled` pass top_k, top_p and min_p, ascending; None if no cut is asked for.

    scaled: logits / temperature; `best` is the index of the largest. The weight of an index is exp(scaled - largest) in
    fp32. top_p keeps the shortest beginning of the descending order whose weights, summed one by one in float64, reach
    `top_p` times the sum over what top_k left; min_p keeps weights of at least `min_p`.
    """
    if 0 < params.top_k < len(scaled):
        kept = largest(scaled, params.top_k)
        if params.top_p < 1.0:
            running = np.cumsum(_weights(scaled[kept], scaled[best]), dtype=np.float64)
            kept = kept[: _reached(running, params.top_p * running[-1])]
    elif params.top_p < 1.0:
        kept = _nucleus(scaled, best, params.top_p)
    elif params.min_p > 0.0:
        return _where(_weights(scaled, scaled[best]) >= np.float32(params.min_p))
    else:
        return None
    if params.min_p > 0.0:
        kept = kept[_weights(scaled[kept], scaled[best]) >= np.float32(params.min_p)]
    return np.sort(kept)


def exponential(values: _Row) -> _Row:
    """exp in fp32. An entry's bits don't depend on where it stands."""
    result: _Row = torch.from_numpy(values).exp().numpy()
    return result


def _where(condition: NDArray[np.bool_]) -> _Indices:
    return condition.nonzero()[0]


def _weights(scaled: _Row, top: np.float32) -> _Row:
    return exponential(scaled - top)


def _nucleus(scaled: _Row, best: int, top_p: float) -> _Indices:
    weights = _weights(scaled, scaled[best])
    total = float(weights.sum(dtype=np.float64))
    target = top_p * total
    # Sort the heaviest alone: at most 1024 have a share of 1 / 1024. Only if they don't suffice, sort more.
    for share in (1 / 1024, 1 / 16384, (1 - top_p) / len(scaled)):
        heavy = _where(scaled >= scaled[best] + np.float32(min(0.0, math.log(share * total))))
        if weights[heavy].sum(dtype=np.float64) >= target * (1 - 1e-9):
            order = descending(scaled, heavy)
            running = np.cumsum(weights[order], dtype=np.float64)
            if running[-1] >= target:
                return order[: _reached(running, target)]
    order = descending(scaled, np.arange(len(scaled)))
    return order[: _reached(np.cumsum(weights[order], dtype=np.float64), target)]


def _reached(running: NDArray[np.float64], target: float) -> int:
    return int(np.searchsorted(running, target)) + 1


def _lower_bound(values: _Row, count: int) -> np.float32:
    """A number that at least `count` entries reach, and few more: the `count`-th largest of the columns' largest."""
    width = max(512, 4 * count)
    height = len(values) // width
    columns = values[: height * width].reshape(height, width).max(axis=0) if height > 1 else values
    bound: np.float32 = np.partition(columns, len(columns) - count)[len(columns) - count]
    return bound
