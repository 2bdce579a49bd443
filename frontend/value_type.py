"""What a gen's text must be and the value it becomes: a constraint for the grammar, and a parser for the text."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jsonschema_rs
from pydantic import TypeAdapter

from ..errors import RequestError
from ..grammar import EBNF, Choice, Constraint, JSONSchema, Regex

__all__ = ["ValueType", "value_type"]


@dataclass(frozen=True, slots=True)
class ValueType:
    """`parse(text, cut)` gives the value or raises; `cut` says that the token limit ended the text."""

    constraint: Constraint
    parse: Callable[[str, bool], Any]


def value_type(
    *,
    regex: str | Regex | None = None,
    schema: Any = None,
    ebnf: str | EBNF | None = None,
    choices: Sequence[str] | Choice | None = None,
) -> ValueType | None:
    """The one constraint that was given, or None. Two at once are a RequestError."""
    given = {"regex": regex, "schema": schema, "ebnf": ebnf, "choices": choices}
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise RequestError(names[1], given[names[1]], f"one gen takes one constraint, and {names[0]}= is given too")
    if regex is not None:
        constraint = regex if isinstance(regex, Regex) else Regex(regex)
        return ValueType(constraint, partial(_parse_match, constraint))
    if schema is not None:
        return _of_schema(schema)
    if ebnf is not None:
        return ValueType(ebnf if isinstance(ebnf, EBNF) else EBNF(ebnf), _parse_sentence)
    if choices is not None:
        choice = choices if isinstance(choices, Choice) else Choice(choices)
        return ValueType(choice, partial(_parse_choice, choice))
    return None


def _of_schema(schema: Any) -> ValueType:
    if isinstance(schema, JSONSchema):
        return _of_constraint(schema)
    if isinstance(schema, str | bytes | bool | Mapping):
        return _of_constraint(JSONSchema(schema))
    try:
        return _of_type(schema)
    except TypeError:  # a type that can't be hashed
        return _of_constraint(JSONSchema(schema))


@lru_cache(maxsize=256)
def _of_type(python_type: Any) -> ValueType:
    """Describing a class takes milliseconds, and a program's gen is built anew in every run."""
    return _of_constraint(JSONSchema(python_type))


def _of_constraint(constraint: JSONSchema) -> ValueType:
    if constraint.python_type is None:
        return ValueType(constraint, partial(_parse_document, constraint))
    adapter: TypeAdapter[Any] = TypeAdapter(constraint.python_type)
    return ValueType(constraint, lambda text, cut: adapter.validate_json(text))


# A text that ended by itself is as its grammar demands. A cut text must be shown to be whole.


def _parse_document(constraint: JSONSchema, text: str, cut: bool) -> Any:
    value = json.loads(text)
    if cut:
        jsonschema_rs.validate(json.loads(constraint.text), value)
    return value


def _parse_match(constraint: Regex, text: str, cut: bool) -> str:
    if cut and not re.fullmatch(constraint.pattern, text, constraint.flags):
        raise ValueError(f"{text!r} does not match {constraint.pattern!r}")
    return text


def _parse_choice(constraint: Choice, text: str, cut: bool) -> str:
    if text not in constraint.choices:
        raise ValueError(f"{text!r} is none of the choices {list(constraint.choices)!r}")
    return text


def _parse_sentence(text: str, cut: bool) -> str:
    if cut:
        raise ValueError("nothing shows that the cut text is a whole sentence of the grammar")
    return text
