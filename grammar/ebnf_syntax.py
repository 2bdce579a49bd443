"""Grammars in Lark: what is refused by name, and schemas within them lowered like any other."""

from __future__ import annotations

import json
import re

from ..errors import InvalidConstraint, UnsupportedConstraint
from .constraint import EBNF

__all__ = ["lower_lark"]

# One lexeme of Lark. A regular expression can't be told from a division, but Lark has none.
_LEXEME = re.compile(
    r"""
      (?P<comment>(?://|\#)[^\n]*)
    | (?P<string>"(?:[^"\\\n]|\\.)*"i?)
    | (?P<regex>/(?!/)(?:[^/\\\n]|\\.)+/[imslux]*)
    | (?P<directive>%[a-z_]+)
    | (?P<special><(?:\[[^\]]*\]|[^<>\s]+)>)
    | (?P<gbnf>::=)
    | (?P<attribute>\b(?:max_tokens|stop|suffix|temperature|capture|stop_capture|lazy)\b)
    | (?P<grammar>@[A-Za-z0-9_-]+)
    | (?P<other>.|\n)
    """,
    re.VERBOSE,
)
_DIRECTIVES = frozenset({"%import", "%ignore", "%regex", "%if"})
_ATTRIBUTES = frozenset({"max_tokens", "stop", "stop_capture", "temperature"})


def lower_lark(constraint: EBNF) -> str:
    """The grammar for the engine. Raises UnsupportedConstraint with line and column, or InvalidConstraint."""
    text = constraint.text
    if constraint.dialect == "gbnf":
        raise UnsupportedConstraint("$", "dialect", "'gbnf' is not supported yet: write the grammar in Lark")
    position = 0
    brackets = 0
    while position < len(text):
        match = _LEXEME.match(text, position)
        assert match is not None and match.lastgroup is not None
        kind, lexeme = match.lastgroup, match.group()
        brackets += {"[": 1, "]": -1}.get(lexeme, 0)
        position = match.end()
        if kind == "directive" and lexeme == "%json":
            position = _json_end(text, position)
            raise UnsupportedConstraint(_place(text, match.start()), "%json", "in a grammar is not supported yet")
        if kind == "directive" and lexeme not in _DIRECTIVES:
            raise UnsupportedConstraint(_place(text, match.start()), lexeme)
        if kind == "gbnf":
            raise UnsupportedConstraint(_place(text, match.start()), "dialect", "reads like GBNF: write it in Lark")
        if kind == "special":
            message = "is a special token, which has no text"
            raise UnsupportedConstraint(_place(text, match.start()), lexeme, message)
        if kind == "grammar":
            raise UnsupportedConstraint(_place(text, match.start()), lexeme)
        if kind == "attribute" and brackets > 0 and lexeme in _ATTRIBUTES:
            raise UnsupportedConstraint(_place(text, match.start()), lexeme, "can't be taken back, so it is refused")
    return text


def _json_end(text: str, position: int) -> int:
    start = len(text) - len(text[position:].lstrip())
    try:
        return json.JSONDecoder().raw_decode(text, start)[1]
    except json.JSONDecodeError as error:
        raise InvalidConstraint(_place(text, error.pos), error.msg) from None


def _place(text: str, position: int) -> str:
    line = text.count("\n", 0, position) + 1
    return f"line {line}, column {position - text.rfind(chr(10), 0, position)}"
