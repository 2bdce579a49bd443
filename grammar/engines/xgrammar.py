"""xgrammar: a pushdown automaton over the bytes of tokens, with masks that are prepared when it is compiled.

It imports torch, so it is loaded when a compiler asks for it and not before. Its own readers of JSON Schema and of
regular expressions pass over much that they don't know, and its masks disagree with what it accepts where rules are
recursive or followed by others. So it is given neither: what it gets is an automaton, written by `ebnf_emit`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import EngineError
from ..ebnf_emit import write_ebnf
from ..engine import Bitmask, EngineRefusal, GrammarSource
from ..regular_states import TooManyStates, build_states
from ..vocabulary import Vocabulary
from .regular import RegularEngine, check_sets, load_library, pack_bits

if TYPE_CHECKING:
    import xgrammar

__all__ = ["MAX_STATES", "XGrammarEngine"]

# States by characters. Measured with 49,152 tokens: `(?s).{1,60}` takes 1.6 s to compile and, without a limit, 250 of
# them 7.7 s, and nothing can stop it meanwhile.
MAX_STATES = 128

_BYTES_PER_GRAMMAR = 1 << 14


class XGrammarEngine(RegularEngine):
    """`GrammarEngine` over xgrammar: regular languages of at most `MAX_STATES` states, plain character sets."""

    name = "xgrammar"

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._library = load_library("xgrammar", self.name)
        info = self._library.TokenizerInfo(
            list(vocabulary.tokens), vocab_size=vocabulary.size, stop_token_ids=list(vocabulary.eos_ids)
        )
        self._compiler: xgrammar.GrammarCompiler = self._library.GrammarCompiler(
            info, max_threads=1, cache_enabled=False
        )
        size = vocabulary.size
        self._ends = pack_bits(np.array(vocabulary.eos_ids, dtype=np.int64), size)
        self._texts = pack_bits(np.flatnonzero([bool(token) for token in vocabulary.tokens]), size)

    def compile(self, source: GrammarSource) -> _Grammar:
        node = source.tree()
        check_sets(node, self.name)
        try:
            states = build_states(node, MAX_STATES)
        except TooManyStates:
            raise EngineRefusal("budget", f"more than {MAX_STATES} states are too many for {self.name}") from None
        grammar = _Grammar(self._library, self._compiler.compile_grammar(write_ebnf(states)), self._texts, self._ends)
        first = np.empty_like(self._ends)
        grammar.matcher().fill(first)
        if not first.any():
            raise EngineRefusal("unsatisfiable", "no token of the vocabulary begins a text of this")
        return grammar


class _Grammar:
    def __init__(self, library: Any, compiled: xgrammar.CompiledGrammar, texts: Bitmask, ends: Bitmask):
        self._library = library
        self._compiled = compiled
        self.texts, self.ends = texts, ends
        self.num_bytes = _BYTES_PER_GRAMMAR + compiled.memory_size_bytes

    def matcher(self) -> _Matcher:
        return _Matcher(self, self._library.GrammarMatcher(self._compiled))

    def matches(self, data: bytes) -> bool:
        matcher: xgrammar.GrammarMatcher = self._library.GrammarMatcher(self._compiled)
        return (not data or matcher.accept_string(data)) and matcher.is_completed()


class _Matcher:
    def __init__(self, grammar: _Grammar, inner: xgrammar.GrammarMatcher) -> None:
        self._grammar = grammar
        self._inner = inner

    def fill(self, row: Bitmask) -> None:
        self._inner.fill_next_token_bitmask(row.reshape(1, -1))
        row &= self._grammar.texts  # a row that bars nothing has the bits of all ids, known or not
        if self.can_end():
            row |= self._grammar.ends

    def allows(self, token_ids: Sequence[int]) -> int:
        found = self._take(token_ids)
        if found:
            self._inner.rollback(found)
        return found

    def _take(self, token_ids: Sequence[int]) -> int:
        return next((i for i, token_id in enumerate(token_ids) if not self._accept(token_id)), len(token_ids))

    def _accept(self, token_id: int) -> bool:
        """Tokens without bytes, ends of text among them, are never texts."""
        has_bytes = bool(self._grammar.texts[token_id // 32] >> (token_id % 32) & 1)
        return has_bytes and self._inner.accept_token(token_id)

    def advance(self, token_ids: Sequence[int]) -> None:
        found = self._take(token_ids)
        if found < len(token_ids):
            raise EngineError(f"xgrammar bars the token {token_ids[found]}, which it allowed before")

    def rollback(self, count: int) -> None:
        if count:
            self._inner.rollback(count)

    def fork(self) -> _Matcher:
        return _Matcher(self._grammar, self._inner.fork())

    def can_end(self) -> bool:
        return self._inner.is_completed()

    def must_end(self) -> bool:
        row = np.empty_like(self._grammar.ends)
        self.fill(row)
        return np.array_equal(row, self._grammar.ends)

    def forced_bytes(self) -> bytes:
        return self._inner.find_jump_forward_string().encode()
