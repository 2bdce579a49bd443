"""Constraints, compiled to matchers that fill token bitmasks. Needs no torch; loads nothing until it is used.

>>> vocabulary = Vocabulary.from_tokenizer("tokenizer.json")
>>> compiled = GrammarCompiler(vocabulary).compile(JSONSchema({"type": "integer"}))
>>> compiled.accepts("12")
True
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..errors import CompileBudgetExceeded, InvalidConstraint, UnsatisfiableConstraint, UnsupportedConstraint
    from .compile_cache import CacheStats
    from .compiled import CompiledGrammar
    from .compiler import GrammarCompiler
    from .constraint import EBNF, Choice, Constraint, JSONSchema, Regex
    from .matcher import GrammarMatcher, fill_bitmasks
    from .vocabulary import Vocabulary

__all__ = [
    "EBNF",
    "CacheStats",
    "Choice",
    "CompileBudgetExceeded",
    "CompiledGrammar",
    "Constraint",
    "GrammarCompiler",
    "GrammarMatcher",
    "InvalidConstraint",
    "JSONSchema",
    "Regex",
    "UnsatisfiableConstraint",
    "UnsupportedConstraint",
    "Vocabulary",
    "fill_bitmasks",
]

_HOMES = {
    "CompileBudgetExceeded": "..errors",
    "InvalidConstraint": "..errors",
    "UnsatisfiableConstraint": "..errors",
    "UnsupportedConstraint": "..errors",
    "CacheStats": ".compile_cache",
    "CompiledGrammar": ".compiled",
    "GrammarCompiler": ".compiler",
    "EBNF": ".constraint",
    "Choice": ".constraint",
    "Constraint": ".constraint",
    "JSONSchema": ".constraint",
    "Regex": ".constraint",
    "GrammarMatcher": ".matcher",
    "fill_bitmasks": ".matcher",
    "Vocabulary": ".vocabulary",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
