"""The draw: argmax of scaled logits plus seeded noise, with noise for those tokens alone that can still win.

The noise of a token lies within [GUMBEL_MIN, GUMBEL_MAX], so a token further than that behind the best one can't win.
Leaving such tokens out changes nothing: the result is the argmax over all tokens, ties to the smaller id.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ..kernels.reference.philox import GUMBEL_MAX, GUMBEL_MIN, gumbel, gumbel_from_words, philox_blocks
from .candidates import exponential

__all__ = ["Draw", "contenders", "draw_from_many", "draw_together"]

_Row = NDArray[np.float32]
_Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Draw:
    """One row of a common draw: the `ids` of its candidates, ascending, and their `scaled` logits, fp32."""

    seed: int
    position: int
    ids: _Indices
    scaled: _Row


def contenders(scaled: _Row, best: int, limit: int) -> _Indices | None:
    """Indices of `scaled` that can win against the largest, `best`; None if they are more than `limit`."""
    near = scaled >= scaled[best] - _reach(scaled[best])
    return near.nonzero()[0] if np.count_nonzero(near) <= limit else None


def draw_together(draws: Sequence[Draw]) -> list[int]:
    """For each draw the index of its winning candidate. One call computes the noise of all that have several."""
    several = [draw for draw in draws if len(draw.ids) > 1]
    noise = iter(_noise(several) if several else ())
    return [int((draw.scaled + next(noise)).argmax()) if len(draw.ids) > 1 else 0 for draw in draws]


def draw_from_many(scaled: _Row, best: int, ids: _Indices | None, size: int, seed: int, position: int) -> int:
    """The winning index of `scaled`, whose token ids are `ids`, below `size`. For rows with thousands of contenders.

    Integer words are made for every contender, but logarithms only for those whose word is small enough: with
    u = (word + 1/2) / 2**32, -log(-log1p(-u)) <= -log(u), so a winner has u <= exp(scaled - s) where s is any sum
    that a token reaches.
    """
    groups, best_id = _groups_of_four(scaled, ids, size), best if ids is None else int(ids[best])
    near = groups.reshape(-1) >= scaled[best] - _reach(scaled[best])
    blocks = (near.view(np.uint32) != 0).nonzero()[0]  # one number is the four flags of a group
    contending = np.ascontiguousarray(groups.take(blocks, axis=0).T)
    words = philox_blocks(torch.tensor([seed]), torch.tensor([position]), torch.from_numpy(blocks)).numpy()
    reached = scaled[best] + _noise_of(words[best_id % 4, [np.searchsorted(blocks, best_id // 4)]])[0]
    most = exponential(contending - (reached - _slack(reached)))
    small = words.astype(np.float32) * np.float32(2.0**-32) <= most
    lane, column = np.divmod(small.reshape(-1).nonzero()[0], len(blocks))
    sums = contending[lane, column] + _noise_of(words[lane, column])
    winner_id = int((blocks[column] * 4 + lane)[sums == sums.max()].min())
    return winner_id if ids is None else int(np.searchsorted(ids, winner_id))


def _noise_of(words: NDArray[np.uint32]) -> _Row:
    noise: _Row = gumbel_from_words(torch.from_numpy(words)).numpy()
    return noise


def _noise(draws: Sequence[Draw]) -> list[_Row]:
    """The noise of each draw's candidates."""
    lengths = torch.tensor([len(draw.ids) for draw in draws])
    noise = gumbel(
        torch.tensor([draw.seed for draw in draws]).repeat_interleave(lengths),
        torch.tensor([draw.position for draw in draws]).repeat_interleave(lengths),
        torch.from_numpy(np.concatenate([draw.ids for draw in draws])),
    )
    return [part.numpy() for part in noise.split(lengths.tolist())]


def _groups_of_four(scaled: _Row, ids: _Indices | None, size: int) -> _Row:
    """The row by token id as [size / 4, 4]: the ids of a group share one block of noise words. Gaps are -inf."""
    if ids is None and size % 4 == 0:
        return scaled.reshape(-1, 4)
    groups = np.full((-(-size // 4), 4), -np.inf, np.float32)
    groups.reshape(-1)[slice(size) if ids is None else ids] = scaled
    return groups


def _reach(top: np.float32) -> np.float32:
    """How far behind the largest, `top`, a token may lie and still win."""
    return np.float32(GUMBEL_MAX - GUMBEL_MIN) + _slack(top)


def _slack(value: np.float32) -> np.float32:
    """More than the roundings of a sum near `value`, of a difference and of an exponential together."""
    return np.float32(0.01 + abs(float(value)) * 2.0**-20)
