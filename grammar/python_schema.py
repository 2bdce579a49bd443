"""JSON Schema of Python types, through Pydantic."""

from __future__ import annotations

import sys
import typing
from typing import Any

import typing_extensions
from pydantic import TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, PydanticUserError

from ..errors import InvalidConstraint

__all__ = ["describe_type"]


def describe_type(python_type: Any) -> tuple[dict[str, Any], Any]:
    """The schema of what Pydantic accepts for a model, a dataclass, a TypedDict, ``list[int]``, ..., and the type.

    The type that comes back is the one to validate with: it is `python_type` but for some TypedDicts (see below).
    """
    try:
        readable = _for_pydantic(python_type)
        return TypeAdapter(readable).json_schema(), readable
    except (PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, PydanticUserError) as error:
        raise InvalidConstraint("$", f"{python_type!r} has no JSON Schema: {str(error).splitlines()[0]}") from None
    except (NameError, TypeError) as error:
        raise InvalidConstraint("$", f"{python_type!r} has no JSON Schema: {error}") from None


def _for_pydantic(python_type: Any) -> Any:
    """Before Python 3.12, Pydantic reads `typing_extensions.TypedDict` alone: rebuild others as such."""
    if sys.version_info >= (3, 12) or not typing.is_typeddict(python_type):
        return python_type
    hints = typing_extensions.get_type_hints(python_type, include_extras=True)
    fields = {}
    for name, hint in hints.items():
        optional = name in python_type.__optional_keys__
        hint = _inner(hint)
        fields[name] = typing_extensions.NotRequired[hint] if optional else typing_extensions.Required[hint]
    make: Any = typing_extensions.TypedDict
    rebuilt = make(python_type.__name__, fields)
    rebuilt.__doc__ = python_type.__doc__
    rebuilt.__module__ = python_type.__module__
    return rebuilt


def _inner(hint: Any) -> Any:
    origin = typing_extensions.get_origin(hint)
    if origin in (typing_extensions.Required, typing_extensions.NotRequired):
        hint = typing_extensions.get_args(hint)[0]
    arguments = typing_extensions.get_args(hint)
    origin = typing_extensions.get_origin(hint)
    if arguments and origin in (list, dict, tuple, set, frozenset):
        return origin[tuple(_for_pydantic(argument) for argument in arguments)]
    return _for_pydantic(hint)
