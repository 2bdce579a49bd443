"""outlines-core: a table of a regular language's states over the whole vocabulary, built when it is compiled.

Its masks are a copy of a row, but the table is dear: with 49,152 tokens and at the limit below up to 1.2 s and 35 MiB,
against 3 ms and 0.1 MiB of llguidance for the same language.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...errors import EngineError
from ..engine import Bitmask, EngineRefusal, GrammarSource
from ..regex_emit import write_full_match
from ..regex_nodes import Concatenation, Node, literal
from ..regular_states import TooManyStates, count_states, is_nullable, unused_character
from ..vocabulary import Vocabulary
from .regular import RegularEngine, check_sets, load_library, pack_bits

if TYPE_CHECKING:
    import outlines_core

__all__ = ["MAX_STATES", "OutlinesCoreEngine"]

# States by characters; one takes up to 8 by bytes. Measured with 49,152 tokens: `(?s).{1,100}` takes 1.9 s and 53 MiB,
# `[^,]{1,60}` 1.1 s and 31 MiB, `[a-z]{1,100}` 0.5 s and 14 MiB. The library knows no limit of its own and can't be
# stopped: languages whose automaton grows exponentially would never come back.
MAX_STATES = 64

_BYTES_PER_GRAMMAR = 1 << 14
_BYTES_PER_TRANSITION = 13  # measured
_SAMPLED_STATES = 16


class OutlinesCoreEngine(RegularEngine):
    """`GrammarEngine` over outlines-core: `Choice` and `Regex` of at most `MAX_STATES` states, plain character sets."""

    name = "outlines-core"

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._library = load_library("outlines_core", self.name)
        self._vocabulary, self._size = vocabulary, vocabulary.size
        tokens: dict[str | bytes, list[int]] = {}
        for token_id, token in enumerate(vocabulary.tokens):
            if token:
                tokens.setdefault(token, []).append(token_id)
        # A language with the empty text is entered through a character of its own, see `compile`.
        for code in range(128):
            tokens.setdefault(bytes([code]), []).append(self._size + 1 + code)
        self._tokens: outlines_core.Vocabulary = self._library.Vocabulary(self._size, tokens)
        self._bytes: outlines_core.Vocabulary = self._library.Vocabulary(256, {bytes([b]): [b] for b in range(256)})

    def compile(self, source: GrammarSource) -> _Grammar:
        node = source.tree()
        check_sets(node, self.name)
        entry = unused_character(node) if is_nullable(node) else ""
        whole = Concatenation((literal(entry), node))
        try:
            count_states(node, MAX_STATES)
            count_states(whole, MAX_STATES, anywhere=True)  # the library builds this one too
        except TooManyStates:
            raise EngineRefusal("budget", f"more than {MAX_STATES} states are too many for {self.name}") from None
        return self._build(whole, entry)

    def _build(self, node: Node, entry: str) -> _Grammar:
        # Alternatives are tried in order and the first that matches ends the search, which loses texts that another
        # would go on with; held to the end of the text, none matches before it.
        pattern = rf"(?:{write_full_match(node)})\z"
        table, by_bytes = (self._library.Index(pattern, tokens) for tokens in (self._tokens, self._bytes))
        begin, byte_begin = table.get_initial_state(), by_bytes.get_initial_state()
        if entry:
            begin = table.get_next_state(begin, self._size + 1 + ord(entry))
            byte_begin = by_bytes.get_next_state(byte_begin, ord(entry))
        grammar = _Grammar(table, by_bytes, begin, byte_begin, self._vocabulary)
        if not grammar.row(begin).any():
            raise EngineRefusal("unsatisfiable", "no token of the vocabulary begins a text of this")
        return grammar


class _Grammar:
    def __init__(
        self,
        table: outlines_core.Index,
        by_bytes: outlines_core.Index,
        begin: int,
        byte_begin: int,
        vocabulary: Vocabulary,
    ) -> None:
        self.table, self.begin = table, begin
        self._by_bytes, self._byte_begin = by_bytes, byte_begin
        self._vocabulary = vocabulary
        self.ends = pack_bits(np.array(vocabulary.eos_ids, dtype=np.int64), vocabulary.size)
        self._rows: dict[int, Bitmask] = {}
        self.num_bytes = _BYTES_PER_GRAMMAR + self._table_bytes()

    def _table_bytes(self) -> int:
        """By a sample: the two tables number their states alike, and to list all of the large one would take long."""
        states = sorted(self._by_bytes.get_transitions())
        sample = states[:: len(states) // _SAMPLED_STATES + 1]
        transitions = sum(len(self.table.get_allowed_tokens(state) or ()) for state in sample)
        return len(states) * (_BYTES_PER_TRANSITION * transitions // max(1, len(sample)) + self.ends.nbytes)

    def row(self, state: int) -> Bitmask:
        """The mask of a state, made when it is first needed."""
        found = self._rows.get(state)
        if found is None:
            ids = np.array(self.table.get_allowed_tokens(state) or (), dtype=np.int64)
            found = pack_bits(ids[ids < self._vocabulary.size], self._vocabulary.size)
            self._rows[state] = found
            if self.table.is_final_state(state):
                found |= self.ends
        return found

    def matcher(self) -> _Matcher:
        return _Matcher(self, [self.begin])

    def matches(self, data: bytes) -> bool:
        state: int | None = self._byte_begin
        for value in data:
            if state is None:
                return False
            state = self._by_bytes.get_next_state(state, value)
        return state is not None and self._by_bytes.is_final_state(state)


class _Matcher:
    def __init__(self, grammar: _Grammar, states: list[int]) -> None:
        self._grammar = grammar
        self._states = states

    def fill(self, row: Bitmask) -> None:
        row[:] = self._grammar.row(self._states[-1])

    def _following(self, token_ids: Sequence[int]) -> list[int]:
        state, found = self._states[-1], []
        for token_id in token_ids:
            following = self._grammar.table.get_next_state(state, token_id)
            if following is None:
                break
            found.append(state := following)
        return found

    def allows(self, token_ids: Sequence[int]) -> int:
        return len(self._following(token_ids))

    def advance(self, token_ids: Sequence[int]) -> None:
        found = self._following(token_ids)
        if len(found) < len(token_ids):
            raise EngineError(f"outlines-core bars the token {token_ids[len(found)]}, which it allowed before")
        self._states += found

    def rollback(self, count: int) -> None:
        if count:
            del self._states[-count:]

    def fork(self) -> _Matcher:
        return _Matcher(self._grammar, list(self._states))

    def can_end(self) -> bool:
        return bool(self._grammar.table.is_final_state(self._states[-1]))

    def must_end(self) -> bool:
        return np.array_equal(self._grammar.row(self._states[-1]), self._grammar.ends)

    def forced_bytes(self) -> bytes:
        return b""  # the table holds tokens, not bytes
