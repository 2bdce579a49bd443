"""From a constraint to a grammar in llguidance's Lark, and back from an engine's refusal to the constraint's terms."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ..errors import (
    CompileBudgetExceeded,
    ConstraintError,
    InvalidConstraint,
    UnsatisfiableConstraint,
    UnsupportedConstraint,
)
from .constraint import EBNF, Choice, Constraint, JSONSchema, Regex
from .ebnf_syntax import lower_lark
from .engine import EngineRefusal, GrammarSource, Probe
from .json_grammar import JSONGrammar
from .regex_classes import write_character
from .regex_emit import write_full_match
from .regex_nodes import Alternation, Node, literal
from .regex_syntax import parse_regex

__all__ = ["Lowered", "lower"]


class Lowered(GrammarSource, Protocol):
    """A constraint as a grammar."""

    @property
    def report(self) -> Mapping[str, str]:
        """How each part of the constraint is treated."""

    def otherwise(self, refusal: EngineRefusal) -> Lowered | None:
        """Another way to say the same, worth trying after `refusal`."""

    def blame(self, refusal: EngineRefusal, probe: Probe) -> ConstraintError:
        """The error that tells the user of `refusal`."""


def lower(constraint: Constraint) -> Lowered:
    """Raises InvalidConstraint, UnsupportedConstraint, UnsatisfiableConstraint, CompileBudgetExceeded."""
    if isinstance(constraint, JSONSchema):
        return JSONGrammar.of(constraint)
    if isinstance(constraint, Regex):
        node = _regex(constraint)
        return _TextGrammar(_terminal(write_full_match(node)), node, "pattern")
    if isinstance(constraint, Choice):
        pattern = "|".join("".join(map(write_character, text)) for text in constraint.choices)
        return _TextGrammar(_terminal(pattern), Alternation(tuple(map(literal, constraint.choices))), "choices")
    if isinstance(constraint, EBNF):
        return _TextGrammar(lower_lark(constraint), None, "grammar")
    raise InvalidConstraint("constraint", f"{constraint!r} is no constraint")


@dataclass(frozen=True)
class _TextGrammar:
    """`node`: the same as a regular language, whose syntax was checked before; None for what isn't known to be one."""

    lark: str
    node: Node | None
    keyword: str
    report: Mapping[str, str] = field(default_factory=lambda: {"$": "enforced"})

    def tree(self) -> Node:
        if self.node is None:
            raise UnsupportedConstraint("$", self.keyword, "is served by llguidance alone")
        return self.node

    def otherwise(self, refusal: EngineRefusal) -> Lowered | None:
        return None

    def blame(self, refusal: EngineRefusal, probe: Probe) -> ConstraintError:
        if refusal.kind == "unsatisfiable":
            return UnsatisfiableConstraint("$", refusal.message)
        if refusal.kind == "budget":
            return CompileBudgetExceeded(self.keyword, refusal.message)
        if self.node is not None or "support" in refusal.message:
            return UnsupportedConstraint("$", self.keyword, f"is refused by the engine: {refusal.message}")
        return InvalidConstraint(self.keyword, refusal.message)


def _regex(constraint: Regex) -> Node:
    flags = re.RegexFlag(constraint.flags)
    unknown = flags & ~(re.IGNORECASE | re.DOTALL)
    if unknown:
        raise UnsupportedConstraint("$", "flags", f"{unknown!r} is not supported: only re.IGNORECASE and re.DOTALL are")
    ignore_case, dot_all = bool(flags & re.IGNORECASE), bool(flags & re.DOTALL)
    return parse_regex(constraint.pattern, "python", ignore_case, dot_all)


def _terminal(pattern: str) -> str:
    return f"start: TEXT\nTEXT: /{pattern or '(?:)'}/"  # two slashes would begin a comment
