"""What a program appends to its state: a closed set of frozen nodes, joined by `+`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from .value_type import ValueType

__all__ = ["CloseRole", "Concat", "Expression", "Gen", "OpenRole", "Role", "RoleName", "Select", "Step", "Text"]

RoleName = Literal["system", "user", "assistant"]


class Expression:
    """A piece of a program. `+` joins expressions, and strings on either side become literal text."""

    __slots__ = ()

    def __add__(self, other: "Expression | str") -> "Concat":
        return Concat((self, as_expression(other)))

    def __radd__(self, other: str) -> "Concat":
        return Concat((as_expression(other), self))


@dataclass(frozen=True, slots=True)
class Text(Expression):
    text: str


@dataclass(frozen=True, slots=True)
class Gen(Expression):
    """Text that the model writes. `options` holds the sampling parameters that were given, and only those."""

    name: str | None
    value_type: ValueType | None = None
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Select(Expression):
    """The one of `choices` that `method` prefers."""

    name: str | None
    choices: tuple[str, ...]
    method: str


@dataclass(frozen=True, slots=True)
class Role(Expression):
    """One message of a chat."""

    role: RoleName
    body: Expression


@dataclass(frozen=True, slots=True)
class Concat(Expression):
    parts: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class OpenRole:
    role: RoleName


@dataclass(frozen=True, slots=True)
class CloseRole:
    pass


Step = Text | Gen | Select | OpenRole | CloseRole


def as_expression(value: Expression | str) -> Expression:
    if isinstance(value, Expression):
        return value
    if isinstance(value, str):
        return Text(value)
    raise TypeError(f"a program is made of strings and expressions, not of {type(value).__name__}: write str(…)")


def steps(expression: Expression) -> Iterator[Step]:
    """The expression as a flat list, in order, a role as its two ends around its body."""
    match expression:
        case Text() | Gen() | Select():
            yield expression
        case Role(role, body):
            yield OpenRole(role)
            yield from steps(body)
            yield CloseRole()
        case Concat(parts):
            for part in parts:
                yield from steps(part)
        case _:
            raise TypeError(f"{type(expression).__name__} is no node of the language")
