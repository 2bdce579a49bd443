"""From rows of logits to tokens. Each outcome is a function of its own row alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import DrawloomError, EngineError
from .allowed_tokens import AllowedTokens, SamplingRow, allowed_tokens
from .candidates import kept_by_cuts, largest
from .gumbel_argmax import Draw, contenders, draw_from_many, draw_together
from .token_bitmask import MaskedIds, read_bitmask

__all__ = ["Sampled", "Sampler", "SamplingRow", "token_logprobs"]

_Row = NDArray[np.float32]
_TopLogprobs = list[tuple[int, float]]
_MOST_DRAWN_TOGETHER = 8192  # candidates of a row; with more it is faster to make its noise in blocks of four ids


@dataclass(frozen=True, slots=True)
class Sampled:
    """The outcome of one row. With an `error` there is no token: `token_id` is -1.

    logprob: fp32 log-softmax at temperature 1, before top-k, top-p and min-p; NaN if log-probabilities weren't asked
    for. top_logprobs: the most probable ids with theirs, descending, ties by smaller id, barred ids left out; None if
    not asked for.
    """

    token_id: int
    logprob: float
    top_logprobs: _TopLogprobs | None
    error: DrawloomError | None = None


class Sampler:
    """Draws by Gumbel-max: argmax over the allowed ids v of l_v / T + g(seed, position, v), all in fp32."""

    def sample(self, logits: Tensor, rows: Sequence[SamplingRow], bitmask: Tensor | None = None) -> list[Sampled]:
        """One token for each of `rows`.

        logits: fp32 [rows, vocabulary]; not changed. On another device than the CPU they are copied first.
        bitmask: int32 [rows, ceil(vocabulary / 32)], a set bit allows its id; None allows all in every row.
        The order of the steps is that of :class:`SamplingParams`. Temperature 0 takes the largest logit; ties go to the
        smaller id. A row that allows nothing, or whose logits aren't finite numbers, gets an EngineError of its own.
        """
        num_rows, size = logits.shape
        assert logits.dtype == torch.float32 and num_rows == len(rows)
        table = logits.detach().cpu().contiguous().numpy()
        masks: list[MaskedIds | None] = [None] * num_rows
        if bitmask is not None:
            assert bitmask.dtype == torch.int32 and len(bitmask) == num_rows
            masks = read_bitmask(bitmask.cpu().numpy(), size)
        begun = [_candidates_or_error(*each) for each in zip(table, rows, masks, strict=True)]
        winners = iter(draw_together([one.draw for one in begun if isinstance(one, _Candidates)]))
        return [one.decided(next(winners)) if isinstance(one, _Candidates) else one for one in begun]


def token_logprobs(
    logits: Tensor, target_ids: Sequence[int] | Tensor, top: int
) -> list[tuple[float, _TopLogprobs | None]]:
    """The model's own log-probability of one given id for each row of `logits` (fp32 [rows, vocabulary]).

    With `top` > 0 also the `top` most probable ids of each row with theirs. Raises EngineError where the largest logit
    of a row isn't a finite number.
    """
    assert logits.dtype == torch.float32 and len(logits) == len(target_ids)
    found: list[tuple[float, _TopLogprobs | None]] = []
    for row, target in zip(logits.detach().cpu().contiguous().numpy(), target_ids, strict=True):
        _index_of_largest(row)
        report = _Report.of(AllowedTokens(row))
        found.append((float(report.logprobs[int(target)]), report.top(top) if top else None))
    return found


@dataclass(frozen=True, slots=True)
class _Report:
    """Log-probabilities of `source`, in its order."""

    source: AllowedTokens
    logprobs: _Row

    @staticmethod
    def of(source: AllowedTokens) -> "_Report":
        return _Report(source, torch.log_softmax(torch.from_numpy(source.logits), dim=-1).numpy())

    def at(self, tokens: AllowedTokens, indices: NDArray[np.int64]) -> _Row:
        """Those of `tokens`, which may be fewer than `source`, at `indices`."""
        return self.logprobs[indices if self.source is tokens else tokens.ids_at(indices)]

    def top(self, count: int) -> _TopLogprobs:
        order = largest(self.logprobs, count)
        order = order[self.logprobs[order] > -np.inf]
        return list(zip(self.source.ids_at(order).tolist(), self.logprobs[order].tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class _Candidates:
    """The few tokens of a row that can still win the draw, with their log-probabilities if they were asked for."""

    draw: Draw
    logprobs: _Row | None
    top_logprobs: _TopLogprobs | None

    def decided(self, winner: int) -> Sampled:
        logprob = math.nan if self.logprobs is None else float(self.logprobs[winner])
        return Sampled(int(self.draw.ids[winner]), logprob, self.top_logprobs)


def _candidates_or_error(logits: _Row, row: SamplingRow, mask: MaskedIds | None) -> _Candidates | Sampled:
    try:
        return _candidates(logits, row, mask)
    except Exception as fault:  # a fault of this row must not reach the others
        return Sampled(-1, math.nan, None, _as_engine_error(fault))


def _as_engine_error(fault: Exception) -> EngineError:
    if isinstance(fault, EngineError):
        return fault
    error = EngineError(f"sampling failed: {fault!r}")
    error.__cause__ = fault
    return error


def _candidates(logits: _Row, row: SamplingRow, mask: MaskedIds | None) -> _Candidates:
    params = row.params
    tokens = allowed_tokens(logits, row, mask)
    best = _index_of_largest(tokens.logits)
    kept, scaled = _contenders(tokens, best, row, len(logits))
    draw = Draw(row.seed, row.position, tokens.ids_at(kept), scaled)
    if not params.logprobs:
        return _Candidates(draw, None, None)
    report = _Report.of(AllowedTokens(logits) if params.logprobs == "model" else tokens)
    top = report.top(params.top_logprobs) if params.top_logprobs else None
    return _Candidates(draw, report.at(tokens, kept), top)


def _contenders(tokens: AllowedTokens, best: int, row: SamplingRow, size: int) -> tuple[NDArray[np.int64], _Row]:
    """Indices of `tokens` among which the draw decides, and their scaled logits. One alone has won already."""
    params = row.params
    if params.temperature == 0.0 or len(tokens.logits) == 1:
        return np.array([best]), tokens.logits[best : best + 1]
    with np.errstate(over="ignore"):
        scaled = tokens.logits / np.float32(params.temperature)
    if not math.isfinite(scaled[best]):
        raise EngineError(
            f"the largest logit, {tokens.logits[best]}, is too large for temperature {params.temperature}"
        )
    kept = kept_by_cuts(scaled, best, params)
    if kept is None:
        kept = contenders(scaled, best, _MOST_DRAWN_TOGETHER)
    if kept is None:
        kept = np.array([draw_from_many(scaled, best, tokens.ids, size, row.seed, row.position)])
    elif len(kept) > _MOST_DRAWN_TOGETHER:
        largest_kept = int(np.searchsorted(kept, best))
        winner = draw_from_many(scaled[kept], largest_kept, tokens.ids_at(kept), size, row.seed, row.position)
        kept = kept[winner : winner + 1]
    return kept, scaled[kept]


def _index_of_largest(logits: _Row) -> int:
    """The first index of the largest. Raises EngineError if there is none or it isn't a finite number."""
    best = int(logits.argmax()) if len(logits) else -1
    if best < 0 or logits[best] == -np.inf:
        raise EngineError("no token is allowed: every id is barred by the bitmask or has no probability")
    if not math.isfinite(logits[best]):
        raise EngineError(f"the model's logits are not finite numbers: the largest is {logits[best]}")
    return best
