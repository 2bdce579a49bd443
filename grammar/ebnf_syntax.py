"""Grammars in Lark: what is refused by name, and schemas within them lowered like any other."""

from __future__ import annotations

import json
import re

from ..errors import CompileBudgetExceeded, InvalidConstraint, UnsatisfiableConstraint, UnsupportedConstraint
from .constraint import EBNF, JSONSchema
from .json_grammar import JSONGrammar

__all__ = ["lower_lark"]

# One lexeme of Lark. A slash always begins a regular expression or a comment.
_LEXEME = re.compile(
    r"""
      (?P<comment>(?://|\#)[^\n]*)
    | (?P<string>"(?:[^"\\\n]|\\.)*"i?)
    | (?P<regex>/(?!/)(?:[^/\\\n]|\\.)+/[imslux]*)
    | (?P<directive>%[a-zA-Z_]+)
    | (?P<special><(?:\[[^\]]*\]|[^<>\s]+)>)
    | (?P<gbnf>::=)
    | (?P<attribute>\b(?:max_tokens|stop|stop_capture|temperature)\b(?=\s*[=,\]]))
    | (?P<word>[\w@-]+)
    | (?P<other>.|\n)
    """,
    re.VERBOSE,
)
_DIRECTIVES = frozenset({"%import", "%ignore", "%regex", "%if"})
_REFUSED = {
    "special": "is a special token, which writes no text",
    "attribute": "can't be enforced here",
}


def lower_lark(constraint: EBNF) -> str:
    """The grammar for the engine. Raises ConstraintErrors whose place or path is a line and a column."""
    if constraint.dialect == "gbnf":
        raise UnsupportedConstraint("$", "dialect", "'gbnf' is not supported yet: write the grammar in Lark")
    text = constraint.text
    out: list[str] = []
    position = 0
    while position < len(text):
        match = _LEXEME.match(text, position)
        assert match is not None and match.lastgroup is not None
        kind, lexeme = match.lastgroup, match.group()
        position = match.end()
        if kind == "gbnf":
            message = "reads like GBNF, which is not supported yet: write the grammar in Lark"
            raise UnsupportedConstraint(_place(text, match.start()), "dialect", message)
        if kind in _REFUSED:
            raise UnsupportedConstraint(_place(text, match.start()), lexeme, _REFUSED[kind])
        if kind == "directive" and lexeme == "%json":
            literal, position = _lower_json(text, position)
            lexeme = f"%json {literal}"
        elif kind == "directive" and lexeme not in _DIRECTIVES:
            raise UnsupportedConstraint(_place(text, match.start()), lexeme)
        out.append(lexeme)
    if not re.search(r"^[ \t]*[?!]?start\b", text, re.MULTILINE):
        raise InvalidConstraint("grammar", "has no rule `start`")
    return "".join(out)


def _lower_json(text: str, position: int) -> tuple[str, int]:
    """The schema that begins behind `position`, lowered, and where it ends."""
    start = len(text) - len(text[position:].lstrip())
    place = _place(text, start)
    try:
        _, end = json.JSONDecoder().raw_decode(text, start)
    except json.JSONDecodeError as error:
        raise InvalidConstraint(_place(text, error.pos), error.msg) from None
    try:
        schema = JSONGrammar.of(JSONSchema(text[start:end]))
        return schema.literal(schema.lowered.root), end
    except InvalidConstraint as error:
        raise InvalidConstraint(f"{place}, {error.place}", error.message) from None
    except UnsupportedConstraint as error:
        raise UnsupportedConstraint(f"{place}, {error.path}", error.keyword, error.message) from None
    except UnsatisfiableConstraint as error:
        raise UnsatisfiableConstraint(f"{place}, {error.path}", error.message) from None
    except CompileBudgetExceeded as error:
        raise CompileBudgetExceeded(error.what, f"{place}: {error.message}") from None


def _place(text: str, position: int) -> str:
    line = text.count("\n", 0, position) + 1
    return f"line {line}, column {position - text.rfind(chr(10), 0, position)}"
