"""Constraints, compiled to matchers that fill token bitmasks. Needs no torch.

>>> vocabulary = Vocabulary.from_tokenizer("tokenizer.json")
>>> compiled = GrammarCompiler(vocabulary).compile(JSONSchema({"type": "integer"}))
>>> compiled.accepts("12")
True
"""

from ..errors import CompileBudgetExceeded, InvalidConstraint, UnsatisfiableConstraint, UnsupportedConstraint
from .compiled import CompiledGrammar
from .compiler import GrammarCompiler
from .constraint import EBNF, Choice, Constraint, JSONSchema, Regex
from .matcher import GrammarMatcher, fill_bitmasks
from .vocabulary import Vocabulary

__all__ = [
    "EBNF",
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
