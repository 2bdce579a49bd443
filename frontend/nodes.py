"""What a program appends to its state: a closed set of frozen nodes, joined by `+`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..runtime.sampling_params import SamplingParams
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
    """Text that the model writes. `sampling` was made of `options`: the parameters that were given, and only those."""

    name: str | None
    value_type: ValueType | None
    options: Mapping[str, Any]
    sampling: SamplingParams


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


def steps(expression: Expression) -> list[Step]:
    """The expression as a flat list, in order, a role as its two ends around its body."""
    flat: list[Step] = []
    pending: list[Expression | CloseRole] = [expression]
    while pending:  # a loop, so that a sum of thousands of parts is no deep recursion
        part = pending.pop()
        if isinstance(part, Concat):
            pending += reversed(part.parts)
        elif isinstance(part, Role):
            flat.append(OpenRole(part.role))
            pending += (CloseRole(), part.body)
        elif isinstance(part, Text | Gen | Select | CloseRole):
            flat.append(part)
        else:
            raise TypeError(f"{type(part).__name__} is no node of the language")
    return flat
