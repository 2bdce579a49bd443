"""What a user may ask: frozen, hashable constraints."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from ..errors import InvalidConstraint
from .schema_key import schema_key
from .schema_source import canonical_json, read_schema

__all__ = ["EBNF", "Choice", "Constraint", "JSONSchema", "Regex"]


@dataclass(frozen=True)
class Regex:
    """The whole text matches `pattern`, in the syntax of Python's :mod:`re`.

    Flags: ``re.IGNORECASE`` and ``re.DOTALL``, also inline. ``.`` matches no newline without DOTALL; ``^``, ``$``,
    ``\\A`` and ``\\Z`` may stand at the edges of the text only; ``\\p{..}`` takes categories and common scripts.
    Lookaround, backreferences, word boundaries, possessive and atomic groups are refused by name. Unicode classes
    follow the engine's Unicode version.
    """

    pattern: str
    flags: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.pattern, str):
            raise InvalidConstraint("pattern", f"must be a string, not {type(self.pattern).__name__}")
        _require_text(self.pattern, "pattern")
        if not isinstance(self.flags, int) or isinstance(self.flags, bool):
            raise InvalidConstraint("flags", f"must be flags of the module re, not {self.flags!r}")
        object.__setattr__(self, "flags", int(self.flags) & ~int(re.UNICODE))


@dataclass(frozen=True, init=False)
class JSONSchema:
    """The text is JSON that is valid under a schema.

    Args:
        schema: a dict, a bool, JSON text, or a type that Pydantic describes (a model, a TypedDict, a dataclass, ...).
        whitespace: "spaced" is ``json.dumps``'s default (``", "`` and ``": "``, nothing else), "compact" is none at
            all, and n is up to n characters wherever JSON allows whitespace.
        property_order: "schema": properties come in the order in which the schema lists them, then any others.
        numbers: "canonical": an integer is written without a fraction.
        resources: documents that references may lead to, by URI. Nothing is ever fetched.
        formats: "assert" enforces the formats that Drawloom knows and reports the others as annotations; "refuse"
            refuses the others.

    Options that aren't built yet are refused when the constraint is compiled, by name.
    """

    text: str
    whitespace: str | int
    property_order: str
    numbers: str
    resources: tuple[tuple[str, str], ...]
    formats: str
    python_type: Any = field(compare=False, repr=False)

    def __init__(
        self,
        schema: object,
        whitespace: Literal["spaced", "compact"] | int = "spaced",
        property_order: Literal["schema", "any"] = "schema",
        numbers: Literal["canonical", "any"] = "canonical",
        resources: Mapping[str, object] | None = None,
        formats: Literal["assert", "refuse"] = "assert",
    ) -> None:
        text, python_type = read_schema(schema)
        _require_option("property_order", property_order, ("schema", "any"))
        _require_option("numbers", numbers, ("canonical", "any"))
        _require_option("formats", formats, ("assert", "refuse"))
        if isinstance(whitespace, bool) or not isinstance(whitespace, str | int):
            raise InvalidConstraint("whitespace", f"must be 'spaced', 'compact' or a count, not {whitespace!r}")
        if isinstance(whitespace, str):
            _require_option("whitespace", whitespace, ("spaced", "compact"))
        elif whitespace < 0:
            raise InvalidConstraint("whitespace", f"must be 0 or more, not {whitespace}")
        values = {
            "text": text,
            "whitespace": whitespace,
            "property_order": property_order,
            "numbers": numbers,
            "resources": _resources(resources),
            "formats": formats,
            "python_type": python_type,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @cached_property
    def key(self) -> tuple[str, ...]:
        """Equal for schemas that mean the same under the same options, as far as spelling goes."""
        options = (self.whitespace, self.property_order, self.numbers, self.formats, self.resources)
        return schema_key(self.text), repr(options)


@dataclass(frozen=True)
class EBNF:
    """The text is a sentence of a grammar, whose first rule is called ``start``.

    Dialect "lark": Lark with llguidance's additions (``%json``, ``%regex``, ``&`` and ``~`` on terminals, parametric
    rules). A terminal takes the longest text that it can. Special tokens (``<name>``) are refused: what they would
    write has no bytes. "auto" takes Lark for granted and refuses what reads like GBNF.
    """

    text: str
    dialect: str = "auto"

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise InvalidConstraint("text", f"must be a string, not {type(self.text).__name__}")
        _require_text(self.text, "text")
        _require_option("dialect", self.dialect, ("auto", "lark", "gbnf"))


@dataclass(frozen=True)
class Choice:
    """The text is exactly one of `choices`."""

    choices: tuple[str, ...]

    def __init__(self, choices: Iterable[str]) -> None:
        if isinstance(choices, str | bytes) or not isinstance(choices, Iterable):
            raise InvalidConstraint("choices", f"must be a list of strings, not {choices!r}")
        found = tuple(choices)
        for index, choice in enumerate(found):
            if not isinstance(choice, str):
                raise InvalidConstraint(f"choices[{index}]", f"must be a string, not {choice!r}")
            _require_text(choice, f"choices[{index}]")
        if not found:
            raise InvalidConstraint("choices", "needs at least one choice")
        object.__setattr__(self, "choices", tuple(dict.fromkeys(found)))


Constraint = Regex | JSONSchema | EBNF | Choice


def _require_option(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in allowed:
        raise InvalidConstraint(name, f"must be one of {', '.join(map(repr, allowed))}, not {value!r}")


def _require_text(text: str, place: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidConstraint(f"{place}, position {error.start}", "a lone surrogate is not text") from None


def _resources(resources: Mapping[str, object] | None) -> tuple[tuple[str, str], ...]:
    if resources is None:
        return ()
    if not isinstance(resources, Mapping) or not all(isinstance(uri, str) for uri in resources):
        raise InvalidConstraint("resources", "must map URIs to documents")
    return tuple((uri, canonical_json(document, f"resources[{uri!r}]")) for uri, document in resources.items())
