"""From the tree of a regular language to EBNF as xgrammar reads it: one rule, no recursion, explicit ranges."""

from __future__ import annotations

from .character_ranges import code_points
from .regex_classes import CharacterSet
from .regex_nodes import Alternation, Anchor, Concatenation, Node, Repeat

__all__ = ["write_ebnf"]


def write_ebnf(node: Node) -> str:
    """The grammar, whose first rule is `root`. Raises OpaqueSet."""
    return f"root ::= {_write(node)}\n"


def _write(node: Node) -> str:
    if isinstance(node, CharacterSet):
        return f"[{''.join(_range(low, high) for low, high in code_points(node))}]"
    if isinstance(node, Anchor):
        return '""'
    if isinstance(node, Concatenation):
        return f"({' '.join(map(_write, node.parts))})" if node.parts else '""'
    if isinstance(node, Alternation):
        return f"({' | '.join(map(_write, node.options))})"
    return _repeat(node)


def _repeat(node: Repeat) -> str:
    body = _write(node.body)
    if (node.minimum, node.maximum) in ((0, None), (1, None), (0, 1)):
        return body + ("?" if node.maximum else "+" if node.minimum else "*")
    if node.maximum == 0:
        return '""'
    return f"{body}{{{node.minimum},{'' if node.maximum is None else node.maximum}}}"


def _range(low: int, high: int) -> str:
    return _character(low) if low == high else f"{_character(low)}-{_character(high)}"


def _character(code: int) -> str:
    return chr(code) if chr(code).isascii() and chr(code).isalnum() else f"\\U{code:08x}"
