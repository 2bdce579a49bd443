"""From what a user passes as a schema to one canonical JSON text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..errors import CompileBudgetExceeded, InvalidConstraint
from .json_path import show_path

__all__ = ["canonical_json", "load_json", "read_schema"]

MAX_DEPTH = 200


def read_schema(schema: object) -> tuple[str, Any]:
    """The canonical text of `schema`, and the Python type that it was made of (None for a plain document)."""
    if isinstance(schema, bool | Mapping):
        return canonical_json(schema, "$"), None
    if isinstance(schema, str | bytes):
        document = load_json(schema)
        if not isinstance(document, bool | dict):
            raise InvalidConstraint("$", f"a schema is an object or a boolean, not {type(document).__name__}")
        return canonical_json(document, "$"), None
    if schema is None or isinstance(schema, int | float | list | tuple):
        raise InvalidConstraint("$", f"a schema is an object or a boolean, not {schema!r}")
    from .python_schema import describe_type  # Pydantic is loaded for those who pass types alone

    document, python_type = describe_type(schema)
    return canonical_json(document, "$"), python_type


def load_json(text: str | bytes) -> Any:
    """The document in `text`; a repeated key, NaN and Infinity are errors."""
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise InvalidConstraint(f"line {error.lineno}, column {error.colno}", error.msg) from None
    except (ValueError, UnicodeDecodeError) as error:
        raise InvalidConstraint("$", str(error)) from None
    except RecursionError:
        raise _too_deep() from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {repeated!r} is given twice")
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _too_deep() -> CompileBudgetExceeded:
    return CompileBudgetExceeded("nesting", f"the schema nests deeper than {MAX_DEPTH} levels")


def canonical_json(document: object, place: str) -> str:
    """`document` as JSON text: the order of keys is kept, since that of properties matters."""
    _check(document, place)
    return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=dict)


def _check(document: object, place: str) -> None:
    pending: list[tuple[tuple[str | int, ...], object]] = [((), document)]
    while pending:
        path, node = pending.pop()
        if len(path) > MAX_DEPTH:
            raise _too_deep()
        if isinstance(node, Mapping):
            for key, value in node.items():
                if not isinstance(key, str):
                    raise InvalidConstraint(place + show_path(path)[1:], f"the key {key!r} is not a string")
                pending += [((*path, key), key), ((*path, key), value)]
        elif isinstance(node, list | tuple):
            pending += [((*path, index), value) for index, value in enumerate(node)]
        elif (problem := _problem(node)) is not None:
            raise InvalidConstraint(place + show_path(path)[1:], problem)


def _problem(node: object) -> str | None:
    """Why a scalar is not JSON."""
    if isinstance(node, float) and node - node != 0.0:
        return f"{node} is not JSON"
    if node is not None and not isinstance(node, str | int | float | bool):
        return f"{type(node).__name__} is not JSON"
    if isinstance(node, str):
        try:
            node.encode()
        except UnicodeEncodeError:
            return "a lone surrogate is not text"
    return None
