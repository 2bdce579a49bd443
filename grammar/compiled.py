"""A constraint compiled for one vocabulary."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import MappingProxyType

from ..errors import UnsupportedConstraint
from .constraint import Constraint
from .engine import EngineGrammar
from .matcher import GrammarMatcher, MatcherContext

__all__ = ["CompiledGrammar"]


class CompiledGrammar:
    """Immutable and shared between sequences and threads; made by `GrammarCompiler.compile`."""

    def __init__(
        self, constraint: Constraint, grammar: EngineGrammar, report: Mapping[str, str], shared: MatcherContext
    ) -> None:
        self.constraint = constraint
        self._grammar = grammar
        self._report = MappingProxyType(dict(report))
        self._shared = shared

    @property
    def num_bytes(self) -> int:
        """About how much memory it takes."""
        report = sum(sys.getsizeof(path) + sys.getsizeof(how) for path, how in self._report.items())
        return self._grammar.num_bytes + 2 * sys.getsizeof(repr(self.constraint)) + sys.getsizeof(self._report) + report

    def restated(self, constraint: Constraint) -> CompiledGrammar:
        """The same grammar under another spelling of its constraint."""
        same = constraint == self.constraint
        return self if same else CompiledGrammar(constraint, self._grammar, self._report, self._shared)

    @property
    def engine(self) -> str:
        """The name of the engine that enforces the constraint."""
        return self._shared.engine.name

    @property
    def report(self) -> Mapping[str, str]:
        """How each keyword is treated, by JSON path: "enforced", "annotation", ..."""
        return self._report

    def accepts(self, text: str) -> bool:
        """Whether the whole of `text`, byte by byte, satisfies the constraint, however it might be cut into tokens.

        A lone surrogate is no text and never does.

        Raises:
            CompileBudgetExceeded, EngineError: the engine gave up on this text.
        """
        try:
            data = text.encode()
        except UnicodeEncodeError:
            return False
        return self._grammar.matches(data)

    def matcher(self, max_tokens: int | None = None) -> GrammarMatcher:
        """A matcher at the start of a text. `max_tokens` isn't built yet: it is refused."""
        if max_tokens is not None:
            raise UnsupportedConstraint("$", "max_tokens", "is not supported yet")
        return GrammarMatcher(self._grammar.matcher(), self._shared)
