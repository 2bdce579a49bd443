"""A constraint, compiled for one vocabulary."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import UnsupportedConstraint
from .engine import EngineGrammar, GrammarEngine
from .matcher import GrammarMatcher
from .vocabulary import Vocabulary

__all__ = ["CompiledGrammar"]


class CompiledGrammar:
    """Made by `GrammarCompiler.compile`. Immutable; any number of threads and matchers share it.

    engine: the name of the engine that enforces it. report: how each keyword is treated, by JSON path ("enforced",
    "annotation", ...); for constraints without keywords, the constraint itself under "$".
    """

    def __init__(
        self, grammar: EngineGrammar, engine: GrammarEngine, vocabulary: Vocabulary, report: Mapping[str, str]
    ) -> None:
        self._grammar = grammar
        self._engine = engine
        self._vocabulary = vocabulary
        self.engine = engine.name
        self.report = dict(report)

    def accepts(self, text: str) -> bool:
        """Whether `text`, byte by byte and whole, satisfies the constraint. A lone surrogate never does.

        Raises:
            CompileBudgetExceeded, EngineError: the engine gave up on this text.
        """
        try:
            data = text.encode()
        except UnicodeEncodeError:
            return False
        return self._grammar.matches(data)

    def matcher(self, max_tokens: int | None = None) -> GrammarMatcher:
        """The state of one text, at its beginning. `max_tokens` must be None: closing in budget isn't built yet."""
        if max_tokens is not None:
            raise UnsupportedConstraint("$", "max_tokens", "is not supported yet")
        return GrammarMatcher(self._grammar.matcher(), self._engine, self._vocabulary)
