"""From constraints to compiled grammars, by way of an engine."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from ..errors import CompileBudgetExceeded, InvalidConstraint, UnsatisfiableConstraint, UnsupportedConstraint
from .compiled import CompiledGrammar
from .constraint import EBNF, Choice, Constraint, JSONSchema, Regex
from .engine import EngineGrammar, EngineRefusal, GrammarEngine
from .engines.llguidance import LLGuidanceEngine
from .finite_schema import bar_endless, blamed_path
from .json_path import show_path
from .json_schema import LoweredSchema, NeedsPlainEscapes, Schema, lower_schema
from .lark import choice_lark, ebnf_lark, regex_lark, schema_lark
from .vocabulary import Vocabulary

__all__ = ["GrammarCompiler"]

_ENGINES: dict[str, Callable[[Vocabulary], GrammarEngine]] = {"llguidance": LLGuidanceEngine}
_MOST_CACHED = 256
_MOST_PROBES = 200


class GrammarCompiler:
    """Compiles constraints for one vocabulary and keeps those used last. Any thread may use it.

    Args:
        vocabulary: what masks are made for.
        engines: "auto", or the name of the one engine to use.

    Raises:
        InvalidConstraint: if `engines` names none.
    """

    def __init__(self, vocabulary: Vocabulary, engines: str = "auto") -> None:
        name = "llguidance" if engines == "auto" else engines
        if name not in _ENGINES:
            raise InvalidConstraint("engines", f"must be 'auto' or one of {sorted(_ENGINES)}, not {engines!r}")
        self._vocabulary = vocabulary
        self._engine = _ENGINES[name](vocabulary)
        self._cache: OrderedDict[Constraint, CompiledGrammar] = OrderedDict()
        self._lock = threading.Lock()

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        """Compiles `constraint`, or refuses it.

        Raises:
            InvalidConstraint: malformed, with the place.
            UnsupportedConstraint: can't be enforced exactly, with the JSON path and the keyword.
            UnsatisfiableConstraint: no text satisfies it.
            CompileBudgetExceeded: over a limit of the engine.
        """
        with self._lock:
            if constraint in self._cache:
                self._cache.move_to_end(constraint)
                return self._cache[constraint]
        compiled = self._compile(constraint)
        with self._lock:
            self._cache[constraint] = compiled
            while len(self._cache) > _MOST_CACHED:
                self._cache.popitem(last=False)
        return compiled

    def _compile(self, constraint: Constraint) -> CompiledGrammar:
        if isinstance(constraint, JSONSchema):
            return self._compile_schema(constraint)
        if isinstance(constraint, Regex):
            return self._compile_text("pattern", regex_lark(constraint))
        if isinstance(constraint, Choice):
            return self._compile_text("choices", choice_lark(constraint))
        if isinstance(constraint, EBNF):
            return self._compile_text("grammar", ebnf_lark(constraint))
        raise InvalidConstraint("constraint", f"{constraint!r} is no constraint")

    def _compile_text(self, keyword: str, lark: str) -> CompiledGrammar:
        try:
            return self._compiled(self._engine.compile(lark), {"$": "enforced"})
        except EngineRefusal as refusal:
            if refusal.kind == "unsupported":
                raise InvalidConstraint(keyword, refusal.message) from None
            raise _told(refusal, "$", keyword) from None

    def _compile_schema(self, constraint: JSONSchema) -> CompiledGrammar:
        _refuse_later_options(constraint)
        try:
            lowered = lower_schema(constraint.text, formats=constraint.formats, unicode_escapes=True)
        except NeedsPlainEscapes:
            lowered = lower_schema(constraint.text, formats=constraint.formats, unicode_escapes=False)
        if not bar_endless(lowered) or lowered.root is False:
            raise UnsatisfiableConstraint(show_path(blamed_path(lowered, lambda node: node is False)))

        def lark(node: Schema | None = None) -> str:
            document = lowered.document(node)
            return schema_lark(document, whitespace=constraint.whitespace, unicode_escapes=lowered.unicode_escapes)

        try:
            return self._compiled(self._engine.compile(lark()), lowered.report)
        except EngineRefusal as refusal:
            raise self._blame(refusal, lowered, lark) from None

    def _compiled(self, grammar: EngineGrammar, report: dict[str, str]) -> CompiledGrammar:
        return CompiledGrammar(grammar, self._engine, self._vocabulary, report)

    def _blame(self, refusal: EngineRefusal, lowered: LoweredSchema, lark: Callable[[Schema], str]) -> Exception:
        """The error for a schema that the engine refuses: with the path of the part that it refuses alone."""
        if refusal.kind == "unsatisfiable":
            path = blamed_path(lowered, lambda node: node is False or self._kind(lark(node)) == "unsatisfiable")
            return _told(refusal, show_path(path), "")
        parts = sorted(lowered.paths, key=lambda pair: -len(pair[0]))[:_MOST_PROBES]
        for path, node in parts:
            if (found := self._engine.probe(lark(node))) is not None and found.kind == refusal.kind:
                keywords = [name for name in node if self._kind(lark(_without(node, name))) != refusal.kind]
                return _told(found, show_path(path), keywords[0] if keywords else next(iter(node)))
        return _told(refusal, "$", next(iter(lowered.root)) if isinstance(lowered.root, dict) else "")

    def _kind(self, lark: str) -> str | None:
        try:
            self._engine.compile(lark)
        except EngineRefusal as refusal:
            return refusal.kind
        return None


def _without(node: dict[str, object], keyword: str) -> dict[str, object]:
    return {name: value for name, value in node.items() if name != keyword}


def _told(refusal: EngineRefusal, path: str, keyword: str) -> Exception:
    if refusal.kind == "unsatisfiable":
        return UnsatisfiableConstraint(path)
    if refusal.kind == "budget":
        return CompileBudgetExceeded("grammar", f"{path}: {refusal.message}")
    return UnsupportedConstraint(path, keyword, f"is refused by the engine: {refusal.message}")


def _refuse_later_options(constraint: JSONSchema) -> None:
    if constraint.property_order != "schema":
        raise UnsupportedConstraint("$", "property_order", f"{constraint.property_order!r} is not supported yet")
    if constraint.numbers != "canonical":
        raise UnsupportedConstraint("$", "numbers", f"{constraint.numbers!r} is not supported yet")
    if constraint.resources:
        raise UnsupportedConstraint("$", "resources", "are not supported yet")
