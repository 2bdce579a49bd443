"""The syntax tree of a regular expression."""

from __future__ import annotations

from dataclasses import dataclass

from .regex_classes import CharacterSet

__all__ = ["Alternation", "Anchor", "Concatenation", "Node", "Repeat", "literal"]


@dataclass(frozen=True)
class Anchor:
    """`^`, ``\\A`` (start) or `$`, ``\\Z`` (end)."""

    at_start: bool
    position: int


@dataclass(frozen=True)
class Concatenation:
    parts: tuple[Node, ...] = ()


@dataclass(frozen=True)
class Alternation:
    options: tuple[Node, ...]


@dataclass(frozen=True)
class Repeat:
    body: Node
    minimum: int
    maximum: int | None


Node = CharacterSet | Anchor | Concatenation | Alternation | Repeat


def literal(text: str) -> Node:
    """`text` and nothing else."""
    return Concatenation(tuple(CharacterSet.build([char]) for char in text))
