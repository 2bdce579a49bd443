"""`GrammarCompiler`: constraints in, compiled grammars out, with a bounded cache between."""

from __future__ import annotations

import threading
from collections import OrderedDict

from ..errors import InvalidConstraint
from .compiled import CompiledGrammar
from .constraint import Constraint
from .engine import EngineRefusal, GrammarEngine
from .forced_text import ForcedText
from .lowering import lower
from .matcher import MatcherContext
from .vocabulary import Vocabulary

__all__ = ["GrammarCompiler"]


class GrammarCompiler:
    """Compiles constraints for one vocabulary. Safe to share between threads.

    Args:
        vocabulary: the tokens of the model.
        engines: "auto", or the name of an engine ("llguidance").
        cache_size: how many compiled grammars are kept; the least recently used go first.
    """

    def __init__(self, vocabulary: Vocabulary, engines: str = "auto", *, cache_size: int = 256) -> None:
        if cache_size < 1:
            raise ValueError(f"cache_size must be 1 or more, not {cache_size}")
        self.vocabulary = vocabulary
        self._cache_size = cache_size
        self._engine = _load_engine(engines, vocabulary)
        self._shared = MatcherContext(self._engine, vocabulary, frozenset(vocabulary.eos_ids), ForcedText(vocabulary))
        self._lock = threading.Lock()
        self._cache: OrderedDict[Constraint, CompiledGrammar] = OrderedDict()

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        """The compiled grammar of `constraint`, from the cache where it was compiled before.

        Raises:
            InvalidConstraint: the constraint is malformed; the error says where.
            UnsupportedConstraint: a keyword or an option can't be enforced exactly; the error names it.
            UnsatisfiableConstraint: no text satisfies it.
            CompileBudgetExceeded: it is too large.
        """
        with self._lock:
            found = self._cache.get(constraint)
            if found is not None:
                self._cache.move_to_end(constraint)
                return found
        found = self._compile(constraint)
        with self._lock:
            self._cache[constraint] = found
            while len(self._cache) > self._cache_size:
                self._cache.popitem(last=False)
        return found

    def _compile(self, constraint: Constraint) -> CompiledGrammar:
        lowered = lower(constraint)
        while True:
            try:
                grammar = self._engine.compile(lowered.lark)
            except EngineRefusal as refusal:
                other = lowered.otherwise(refusal)
                if other is None:
                    raise lowered.blame(refusal, self._engine.probe) from None
                lowered = other
            else:
                return CompiledGrammar(constraint, grammar, lowered.report, self._shared)


def _load_engine(engines: str, vocabulary: Vocabulary) -> GrammarEngine:
    if engines not in ("auto", "llguidance"):
        raise InvalidConstraint("engines", f"must be 'auto' or 'llguidance', not {engines!r}")
    from .engines.llguidance import LLGuidanceEngine

    return LLGuidanceEngine(vocabulary)
