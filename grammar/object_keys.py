"""Objects whose keys the engine must tell apart by their text, not by how the text is spelled.

llguidance excludes the listed names from the other keys of an object by their plain spelling only, so that
``"\\u0061"`` would pass for another key than ``"a"``. Here such objects are rewritten: other keys come out of a
pattern, and keys that match patterns have one spelling.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..errors import UnsupportedConstraint
from .json_path import Path, show_path
from .regex_classes import CharacterSet, write_character

__all__ = ["close_object", "other_than"]

_EVERY_KEY = r"^(?:[\x{0}-\x{10ffff}]*)$"
_ESCAPED = '"\\\x7f'  # beside control characters: the engine's patterns spell these in a way of their own
_IN_PLACE = ("const", "enum", "allOf", "anyOf", "oneOf", "$ref")


def close_object(
    node: dict[str, Any], path: Path, report: dict[str, str], needs_plain: type[Exception] | None
) -> dict[str, Any]:
    """The lowered schema `node` with the keys of its objects made exact.

    `needs_plain` is raised where that takes strings without ``\\u`` escapes; None: they have none.
    """
    node = _grouped(node)
    names = list(node.get("properties", {}))
    others = node.get("additionalProperties", True)
    patterns = node.get("patternProperties", {})
    closed = others is False and not patterns
    minimum = node.get("minProperties", 0) - len(set(node.get("required", ())))
    if minimum > 1 and not closed:  # the same key twice would count as two
        message = "is supported up to one more than the required properties, unless the object is closed"
        raise UnsupportedConstraint(show_path(path), "minProperties", message)
    if needs_plain is None or closed:
        return node
    two_spellings = any(char < " " or char in _ESCAPED for name in names for char in name)
    if two_spellings or (minimum > 0 and node.get("required")) or (patterns and others is not False):
        raise needs_plain
    if patterns or not names:
        return node
    return _with_pattern(node, _EVERY_KEY if others is True else other_than(names), others)


def _with_pattern(node: dict[str, Any], pattern: str, others: Any) -> dict[str, Any]:
    """`node` with ``additionalProperties: others`` said as a pattern, right behind `properties`."""
    out: dict[str, Any] = {}
    for keyword, value in node.items():
        if keyword != "additionalProperties":
            out[keyword] = value
        if keyword == "properties":
            out["patternProperties"] = {pattern: others}
            out["additionalProperties"] = False
    return out


def _grouped(node: dict[str, Any]) -> dict[str, Any]:
    """`node` with its assertions side by side, in the place of `properties`: the engine reads `additionalProperties`
    together with those neighbours only that no `allOf` (or the like) parts from it."""
    keywords = list(node)
    middle = keywords.index("properties") if "properties" in node else -1
    before = [keyword for keyword in keywords[: max(middle, 0)] if keyword in _IN_PLACE]
    assertions = [keyword for keyword in keywords if keyword not in _IN_PLACE]
    after = [keyword for keyword in keywords if keyword in _IN_PLACE and keyword not in before]
    return {keyword: node[keyword] for keyword in (*before, *assertions, *after)}


def other_than(names: Iterable[str]) -> str:
    """The pattern of all texts that are none of `names`."""
    return f"^(?:{'|'.join(_other_than(sorted(set(names)), 0))})$"


def _other_than(names: list[str], depth: int) -> list[str]:
    """Alternatives for the texts that begin like `names`, equal up to `depth`, and are none of them."""
    anything = CharacterSet(negated=True).write() + "*"
    here = [name for name in names if len(name) > depth]
    options = [""] if len(here) == len(names) else []
    firsts = sorted({name[depth] for name in here})
    options.append(CharacterSet.build(firsts, negated=True).write() + anything)
    for char in firsts:
        below = _other_than([name for name in here if name[depth] == char], depth + 1)
        options.append(f"{write_character(char)}(?:{'|'.join(below)})")
    return options
