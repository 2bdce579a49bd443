"""Constraints as the engine's own text: Lark with `%json`."""

from __future__ import annotations

import json
import re

from ..errors import InvalidConstraint, UnsupportedConstraint
from .constraint import EBNF, Choice, Regex
from .json_schema import Schema
from .regex_classes import write_character
from .regex_emit import write_full_match
from .regex_syntax import parse_regex

__all__ = ["choice_lark", "ebnf_lark", "regex_lark", "schema_lark"]

_SUPPORTED_FLAGS = int(re.IGNORECASE | re.DOTALL)
_FLAG_NAMES = {flag.value: flag.name for flag in re.RegexFlag if flag.value and flag.name}

# What a scan of Lark must tell apart: comments, strings, regexes; then what is looked for.
_LARK_TOKENS = re.compile(
    r"""(?P<skipped> //[^\n]* | \#[^\n]* | "(?:\\.|[^"\\\n])*" | /(?:\\.|[^/\\\n])+/ )
      | (?P<special> <[^<>\s]+> )
      | (?P<directive> %[a-zA-Z_]+ )
      | (?P<attribute> \b(?:max_tokens|temperature|stop|stop_capture|capture)\b(?=\s*(?:=|[,\]])) )
      | (?P<gbnf> ::= )
    """,
    re.VERBOSE,
)
_DIRECTIVES = ("%ignore", "%regex", "%if")


def schema_lark(document: Schema, *, whitespace: str | int, unicode_escapes: bool) -> str:
    """Lark for a lowered schema. `whitespace` as in `JSONSchema`."""
    options: dict[str, object] = {"json_allow_general_unicode_escapes": unicode_escapes}
    if whitespace == "spaced":
        options |= {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
    elif whitespace in ("compact", 0):
        options |= {"item_separator": ",", "key_separator": ":", "whitespace_flexible": False}
    else:
        blanks = r"[\x20\x0A\x0D\x09]{1," + str(whitespace) + "}"
        options |= {"item_separator": ",", "key_separator": ":", "whitespace_pattern": blanks}
    body = json.dumps({**(document if isinstance(document, dict) else {}), "x-guidance": options})
    if isinstance(whitespace, int) and whitespace > 0:
        return f"start: BLANKS? value BLANKS?\nvalue: %json {body}\nBLANKS: /[ \\n\\r\\t]{{1,{whitespace}}}/"
    return f"start: %json {body}"


def regex_lark(constraint: Regex) -> str:
    unknown = constraint.flags & ~_SUPPORTED_FLAGS
    if unknown:
        names = [name for value, name in _FLAG_NAMES.items() if unknown & value] or [str(unknown)]
        raise UnsupportedConstraint("$", "flags", f"{'|'.join(names)} is not supported; IGNORECASE and DOTALL are")
    node = parse_regex(
        constraint.pattern,
        "python",
        ignore_case=bool(constraint.flags & re.IGNORECASE),
        dot_all=bool(constraint.flags & re.DOTALL),
    )
    return _terminal(write_full_match(node))


def choice_lark(constraint: Choice) -> str:
    return _terminal("|".join("".join(map(write_character, choice)) for choice in constraint.choices))


def ebnf_lark(constraint: EBNF) -> str:
    """The user's grammar, once nothing in it would escape the engine's exact part.

    Raises:
        UnsupportedConstraint: another dialect, special tokens, `%json`, or attributes that forbid taking tokens back.
    """
    if constraint.dialect == "gbnf":
        raise UnsupportedConstraint("$", "dialect", "'gbnf' is not supported yet; 'lark' is")
    for found in _LARK_TOKENS.finditer(constraint.text):
        kind, text = found.lastgroup, found.group()
        line = constraint.text.count("\n", 0, found.start()) + 1
        if kind == "gbnf":
            raise UnsupportedConstraint(f"line {line}", text, "reads like GBNF, which is not supported yet; use Lark")
        if kind == "special":
            raise UnsupportedConstraint(f"line {line}", text, "is a special token, which has no bytes to match")
        if kind == "attribute":
            raise UnsupportedConstraint(f"line {line}", text, "is an attribute that can't be enforced here")
        if kind == "directive" and text not in _DIRECTIVES:
            hint = "; use JSONSchema for the whole text" if text == "%json" else ""
            raise UnsupportedConstraint(f"line {line}", text, f"is not supported in a grammar{hint}")
    if not re.search(r"^\s*start\b", constraint.text, re.MULTILINE):
        raise InvalidConstraint("$", "the grammar has no rule `start`")
    return constraint.text


def _terminal(pattern: str) -> str:
    # An empty pattern between slashes would be the beginning of a comment.
    return f"start: TEXT\nTEXT: /{pattern or '(?:)'}/"
