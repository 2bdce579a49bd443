"""The first half of sampling: bias, penalties, minimum length and bitmask turn a row of logits into allowed tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .sampling_params import SamplingParams
from .token_bitmask import MaskedIds

__all__ = ["AllowedTokens", "SamplingRow", "allowed_tokens"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRow:
    """What one row of logits is sampled with. `position`: index in the sequence, prompt included, of the new token.

    `output_ids` are the ids before that position which follow the prompt, drafts under verification included.
    `constrained`: a grammar decides where the text ends, whether or not its bitmask bars anything here.
    """

    params: SamplingParams
    seed: int
    position: int
    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    eos_ids: frozenset[int] = frozenset()
    constrained: bool = False


@dataclass(frozen=True, slots=True)
class AllowedTokens:
    """`logits` fp32 [n] of the token ids `ids` [n], ascending; `ids` None: of ids 0 to n - 1. Barred ones are -inf."""

    logits: NDArray[np.float32]
    ids: NDArray[np.int64] | None = None

    def id_at(self, index: int) -> int:
        return index if self.ids is None else int(self.ids[index])

    def ids_at(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return indices if self.ids is None else self.ids[indices]

    def indices_of(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where `ids` stand. Those that are missing are left out."""
        if self.ids is None:
            return ids
        return np.flatnonzero(np.isin(self.ids, ids))


def allowed_tokens(logits: NDArray[np.float32], row: SamplingRow, mask: MaskedIds | None) -> AllowedTokens:
    """Apply logit_bias, then penalties, then min_tokens and the bitmask to `logits` [vocabulary].

    `logits` are left as they are. Where the bitmask allows half of the ids or fewer, only these are kept.
    """
    changed = _adjusted(logits, row)
    if mask is None:
        tokens = AllowedTokens(changed)
    elif mask.allowed:
        tokens = AllowedTokens(changed[mask.ids], mask.ids)
    else:
        barred = changed.copy() if changed is logits else changed
        barred[mask.ids] = -np.inf
        tokens = AllowedTokens(barred)
    return _without_endings(tokens, row, constrained=row.constrained or mask is not None)


def _adjusted(logits: NDArray[np.float32], row: SamplingRow) -> NDArray[np.float32]:
    params = row.params
    penalised = params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
    if not params.logit_bias and not penalised:
        return logits
    changed = logits.copy()
    if params.logit_bias:
        ids = np.fromiter(params.logit_bias.keys(), np.int64)
        changed[ids] += np.fromiter(params.logit_bias.values(), np.float32)
    if params.repetition_penalty != 1.0:
        _penalise_repetition(changed, row)
    if params.presence_penalty != 0.0 or params.frequency_penalty != 0.0:
        ids, counts = np.unique(np.asarray(row.output_ids, dtype=np.int64), return_counts=True)
        changed[ids] -= (params.presence_penalty + params.frequency_penalty * counts).astype(np.float32)
    return changed


def _penalise_repetition(logits: NDArray[np.float32], row: SamplingRow) -> None:
    penalty = np.float32(row.params.repetition_penalty)
    seen = np.unique(np.concatenate([np.asarray(ids, dtype=np.int64) for ids in (row.prompt_ids, row.output_ids)]))
    values = logits[seen]
    logits[seen] = np.where(values > 0, values / penalty, values * penalty)


def _without_endings(tokens: AllowedTokens, row: SamplingRow, *, constrained: bool) -> AllowedTokens:
    """Bar what would end the text before `min_tokens`, unless nothing else is allowed: then the minimum gives way."""
    params = row.params
    if len(row.output_ids) >= params.min_tokens:
        return tokens
    ends = set(params.stop_token_ids)
    if constrained or not params.ignore_eos:
        ends |= row.eos_ids
    indices = tokens.indices_of(np.array(sorted(ends), dtype=np.int64))
    logits = tokens.logits.copy()
    logits[indices] = -np.inf
    if len(logits) == 0 or logits.max() == -np.inf:
        return tokens
    return AllowedTokens(logits, tokens.ids)
