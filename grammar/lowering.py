"""From a constraint to a grammar in llguidance's Lark, and back from an engine's refusal to the constraint's terms."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ..errors import (
    CompileBudgetExceeded,
    ConstraintError,
    UnsatisfiableConstraint,
    UnsupportedConstraint,
)
from .constraint import EBNF, Choice, Constraint, JSONSchema, Regex
from .ebnf_syntax import lower_lark
from .engine import EngineRefusal
from .json_grammar import json_grammars
from .regex_classes import write_character
from .regex_emit import write_full_match
from .regex_syntax import parse_regex

__all__ = ["Lowered", "lower"]

Probe = Callable[[str], EngineRefusal | None]


@dataclass(frozen=True)
class Lowered:
    """A grammar, what it enforces, and who is to blame when an engine refuses it."""

    lark: str
    report: Mapping[str, str]
    blame: Callable[[EngineRefusal, Probe], ConstraintError]


def lower(constraint: Constraint) -> Iterator[Lowered]:
    """The ways to say `constraint`, the best first; a later one is worth trying where an engine refuses the first."""
    if isinstance(constraint, JSONSchema):
        for lark, report, blame in json_grammars(constraint):
            yield Lowered(lark, report, blame)
    elif isinstance(constraint, Regex):
        yield _lower_regex(constraint)
    elif isinstance(constraint, Choice):
        pattern = "|".join("".join(map(write_character, choice)) for choice in constraint.choices)
        yield Lowered(_terminal(pattern), {"$": "enforced"}, _plain_blame("choices"))
    elif isinstance(constraint, EBNF):
        yield Lowered(lower_lark(constraint), {"$": "enforced"}, _plain_blame("grammar"))
    else:
        raise TypeError(f"{constraint!r} is no constraint")


def _lower_regex(constraint: Regex) -> Lowered:
    flags = re.RegexFlag(constraint.flags)
    unknown = flags & ~(re.IGNORECASE | re.DOTALL)
    if unknown:
        raise UnsupportedConstraint("$", "flags", f"{unknown!r} is not supported: only re.IGNORECASE and re.DOTALL are")
    tree = parse_regex(
        constraint.pattern,
        "python",
        ignore_case=bool(flags & re.IGNORECASE),
        dot_all=bool(flags & re.DOTALL),
    )
    return Lowered(_terminal(write_full_match(tree)), {"$": "enforced"}, _plain_blame("pattern"))


def _terminal(pattern: str) -> str:
    return f"start: TEXT\nTEXT: /{pattern or '(?:)'}/"  # two slashes would begin a comment


def _plain_blame(keyword: str) -> Callable[[EngineRefusal, Probe], ConstraintError]:
    def blame(refusal: EngineRefusal, probe: Probe) -> ConstraintError:
        if refusal.kind == "unsatisfiable":
            return UnsatisfiableConstraint("$", refusal.message)
        if refusal.kind == "budget":
            return CompileBudgetExceeded(keyword, refusal.message)
        return UnsupportedConstraint("$", keyword, f"is refused by the engine: {refusal.message}")

    return blame
