"""The state of one generated text under a constraint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import DrawloomError, UnsupportedConstraint
from .engine import EngineMatcher, GrammarEngine
from .forced_text import ForcedText
from .vocabulary import Vocabulary

__all__ = ["GrammarMatcher", "MatcherContext", "fill_bitmasks"]


@dataclass(frozen=True)
class MatcherContext:
    """What all matchers of a compiler share."""

    engine: GrammarEngine
    vocabulary: Vocabulary
    eos_ids: frozenset[int]
    forced_text: ForcedText


class GrammarMatcher:
    """Which tokens may come next in one text; made by `CompiledGrammar.matcher`. For one thread at a time.

    At every state, bit t of the mask is on exactly if ``accept(t)`` would return True. An end of text (any of the
    vocabulary's `eos_ids`) may come exactly where the text may end; after it nothing may.
    """

    def __init__(self, inner: EngineMatcher, shared: MatcherContext) -> None:
        self._inner = inner
        self._shared = shared
        self._vocabulary = shared.vocabulary
        self._eos_ids = shared.eos_ids
        self._token_ids: list[int] = []
        self._terminated = False

    @property
    def token_ids(self) -> Sequence[int]:
        """The ids accepted so far, an end of text included."""
        return tuple(self._token_ids)

    @property
    def is_terminated(self) -> bool:
        """An end of text was accepted."""
        return self._terminated

    @property
    def can_terminate(self) -> bool:
        """The text may end here: it is a whole text of the constraint."""
        return not self._terminated and self._inner.can_end()

    @property
    def must_terminate(self) -> bool:
        """The text is whole and nothing can follow it but an end. Raises as :meth:`fill_bitmask` does."""
        if not self.can_terminate:
            return False
        bitmask = np.zeros((1, -(-self._vocabulary.size // 32)), dtype=np.int32)
        self.fill_bitmask(bitmask)
        words = bitmask[0].view(np.uint32)
        for token_id in self._eos_ids:
            words[token_id // 32] &= ~np.uint32(1 << token_id % 32)
        return not words.any()

    @property
    def min_completion(self) -> int:
        """Not built yet: raises UnsupportedConstraint."""
        raise UnsupportedConstraint("$", "min_completion", "is not supported yet")

    def fill_bitmask(self, bitmask: NDArray[np.int32], row: int = 0) -> None:
        """Writes the mask into one row.

        Args:
            bitmask: C-contiguous int32 ``[rows, ceil(size / 32)]``; bit ``t % 32`` of word ``t // 32`` is token t.
                All words of the row are written; bits beyond the vocabulary and of ids without bytes are off.

        Raises:
            CompileBudgetExceeded, EngineError: the engine can't go on with this text. The row is then zero.
        """
        check_bitmask(bitmask, self._vocabulary.size)
        if not 0 <= row < len(bitmask):
            raise IndexError(f"row {row} of a bitmask with {len(bitmask)} rows")
        if self._terminated:
            bitmask[row] = 0
        else:
            self._inner.fill(bitmask[row])

    def accept(self, token_id: int) -> bool:
        """Takes a token; False, with nothing changed, if it may not come next."""
        if self._terminated or not 0 <= token_id < self._vocabulary.size:
            return False
        if token_id in self._eos_ids:
            if not self._inner.can_end():
                return False
            self._terminated = True
        else:
            if not self._inner.allows((token_id,)):
                return False
            self._inner.advance((token_id,))
        self._token_ids.append(token_id)
        return True

    def rollback(self, count: int) -> None:
        """Takes back the last `count` accepted tokens."""
        if not 0 <= count <= len(self._token_ids):
            raise ValueError(f"rollback of {count} tokens, {len(self._token_ids)} were accepted")
        if count == 0:
            return
        inner_count = count - 1 if self._terminated else count
        if inner_count:
            self._inner.rollback(inner_count)
        self._terminated = False
        del self._token_ids[-count:]

    def fork(self) -> GrammarMatcher:
        """An independent matcher in the same state."""
        copy = GrammarMatcher(self._inner.fork(), self._shared)
        copy._token_ids = list(self._token_ids)
        copy._terminated = self._terminated
        return copy

    def validate_drafts(self, token_ids: Sequence[int]) -> int:
        """How many of `token_ids` could be accepted one after the other. Changes nothing."""
        if self._terminated:
            return 0
        end = next((index for index, token_id in enumerate(token_ids) if token_id in self._eos_ids), len(token_ids))
        known = next((i for i in range(end) if not 0 <= token_ids[i] < self._vocabulary.size), end)
        found = self._inner.allows(token_ids[:known])
        if found < end or end == len(token_ids):
            return found
        self._inner.advance(token_ids[:end])
        found += self._inner.can_end()
        self._inner.rollback(end)
        return found

    def forced_ids(self, limit: int) -> list[int]:
        """At most `limit` ids that the text must go on with, as the tokenizer would write them.

        Ends before the first token that what follows could still change, so the list may be empty though bytes are
        forced. Without a tokenizer (a vocabulary made of bytes alone) nothing is known to be ordinary: always empty.
        """
        if self._terminated or limit <= 0 or not self._vocabulary.can_encode:
            return []
        forced = self._inner.forced_bytes()
        if not forced:
            return []
        ids, settled = self._shared.forced_text.encode(self._token_ids, forced)
        if settled < len(ids) and self._ends_after(ids):
            settled = len(ids)
        return list(ids[: min(settled, limit)])

    def _ends_after(self, token_ids: Sequence[int]) -> bool:
        """Whether nothing but the end of the text can follow `token_ids`, so that no later text can change them."""
        if self._inner.allows(token_ids) < len(token_ids):
            return False
        self._inner.advance(token_ids)
        found = self._inner.must_end()
        self._inner.rollback(len(token_ids))
        return found


def check_bitmask(bitmask: NDArray[np.int32], size: int) -> None:
    words = (size + 31) // 32
    if not isinstance(bitmask, np.ndarray) or bitmask.dtype != np.int32:
        raise TypeError("a bitmask is a numpy array of int32")
    if bitmask.ndim != 2 or bitmask.shape[1] != words:
        raise ValueError(f"a bitmask for {size} tokens has the shape [rows, {words}], not {list(bitmask.shape)}")
    if not bitmask.flags.c_contiguous or not bitmask.flags.writeable:
        raise ValueError("a bitmask is C-contiguous and writeable")


def fill_bitmasks(
    matchers: Sequence[tuple[GrammarMatcher, int]], bitmask: NDArray[np.int32]
) -> dict[int, DrawloomError]:
    """`fill_bitmask` for many matchers, each with its row; other Python threads run meanwhile.

    Returns the errors by index into `matchers`: a matcher that fails leaves a row of zeros and harms no other.
    """
    by_engine: dict[int, list[int]] = {}
    for index, (matcher, row) in enumerate(matchers):
        check_bitmask(bitmask, matcher._vocabulary.size)
        if not 0 <= row < len(bitmask):
            raise IndexError(f"row {row} of a bitmask with {len(bitmask)} rows")
        if matcher._terminated:
            bitmask[row] = 0
        else:
            by_engine.setdefault(id(matcher._shared.engine), []).append(index)
    errors: dict[int, DrawloomError] = {}
    for indices in by_engine.values():
        engine = matchers[indices[0]][0]._shared.engine
        rows = [(matchers[index][0]._inner, matchers[index][1]) for index in indices]
        failed = engine.fill_batch(rows, bitmask)
        errors |= {indices[position]: error for position, error in failed.items()}
    return errors
