"""What a gen's text must be and the value it becomes: a constraint for the grammar, and a parser for the text."""

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jsonschema_rs
from pydantic import TypeAdapter

from ..errors import RequestError
from ..grammar import EBNF, Choice, Constraint, JSONSchema, Regex

__all__ = ["ValueType", "close_objects", "value_type"]


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
        return ValueType(constraint, _parse_match)
    if schema is not None:
        return _of_schema(schema)
    if ebnf is not None:
        return ValueType(ebnf if isinstance(ebnf, EBNF) else EBNF(ebnf), _parse_sentence)
    if choices is not None:
        choice = choices if isinstance(choices, Choice) else Choice(choices)
        return ValueType(choice, partial(_parse_choice, choice))
    return None


def _of_schema(schema: Any) -> ValueType:
    if isinstance(schema, str | bytes | bool | Mapping):
        schema = JSONSchema(schema)
    if not isinstance(schema, JSONSchema):
        return _of_type(schema) if isinstance(schema, Hashable) else _of_type.__wrapped__(schema)
    if schema.python_type is None:
        return ValueType(schema, partial(_parse_document, schema))
    return ValueType(schema, partial(_parse_object, TypeAdapter(schema.python_type)))


@lru_cache(maxsize=256)
def _of_type(python_type: Any) -> ValueType:
    """Describing a class takes milliseconds, and a program's gen is built anew in every run.

    Keys that the class would ignore are not asked of the model: it might write them until its tokens run out.
    """
    described = JSONSchema(python_type)
    closed = JSONSchema(close_objects(json.loads(described.text)))
    return ValueType(closed, partial(_parse_object, TypeAdapter(described.python_type)))


def close_objects(schema: Any) -> Any:
    """The schema with ``additionalProperties: false`` in each object that lists properties and is silent on others."""
    if not isinstance(schema, dict):
        return schema
    closed = dict(schema)
    for keyword in ("properties", "patternProperties", "$defs"):
        if keyword in closed:
            closed[keyword] = {name: close_objects(part) for name, part in closed[keyword].items()}
    for keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
        if keyword in closed:
            closed[keyword] = [close_objects(part) for part in closed[keyword]]
    for keyword in ("items", "additionalProperties"):
        if keyword in closed:
            closed[keyword] = close_objects(closed[keyword])
    if "properties" in closed:
        closed.setdefault("additionalProperties", False)
    return closed


# A text that ended by itself is as its grammar demands. A cut text could have gone on, so it must be shown to be whole:
# JSON shows it by its last bracket or quote, a number, a match or a choice may be the beginning of a longer one.


def _parse_document(constraint: JSONSchema, text: str, cut: bool) -> Any:
    _check_closed(text, cut)
    value = json.loads(text)
    if cut:
        jsonschema_rs.validate(json.loads(constraint.text), value)
    return value


def _parse_object(adapter: TypeAdapter[Any], text: str, cut: bool) -> Any:
    _check_closed(text, cut)
    return adapter.validate_json(text)


def _check_closed(text: str, cut: bool) -> None:
    if cut and text[-1:].isdigit():
        raise ValueError(f"the number {text} could have gone on")


def _parse_match(text: str, cut: bool) -> str:
    if cut:
        raise ValueError(f"{text!r} could have gone on")
    return text


def _parse_choice(constraint: Choice, text: str, cut: bool) -> str:
    if cut or text not in constraint.choices:
        raise ValueError(f"{text!r} is none of the choices {list(constraint.choices)!r}")
    return text


def _parse_sentence(text: str, cut: bool) -> str:
    if cut:
        raise ValueError("nothing shows that the cut text is a whole sentence of the grammar")
    return text
