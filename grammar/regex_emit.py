"""From the tree of a regular expression to the pattern that an engine matches against a whole text.

Anchors disappear here: one that can only stand at the edge of the text is dropped, any other is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import UnsupportedConstraint
from .regex_classes import CharacterSet
from .regex_nodes import Alternation, Anchor, Concatenation, Node, Repeat

__all__ = ["ANYTHING", "write_full_match", "write_search"]

ANYTHING = r"[\x{0}-\x{10ffff}]*"


def write_full_match(node: Node, place: str = "") -> str:
    """The pattern of all texts that `node` matches from their first character to their last."""
    return _Writer(place).write(node, at_start=True, at_end=True)


def write_search(node: Node, place: str = "") -> str:
    """The pattern of all texts in which `node` matches somewhere: the meaning of `pattern` in JSON Schema."""
    options = node.options if isinstance(node, Alternation) else (node,)
    return "|".join(_search_option(option, place) for option in options)


def _search_option(node: Node, place: str) -> str:
    starts, ends = _anchored(node, True), _anchored(node, False)
    if starts is None or ends is None:
        raise UnsupportedConstraint(place or "$", "pattern", "has a group in which only some alternatives are anchored")
    body = _Writer(place).write(node, at_start=starts, at_end=ends)
    if isinstance(node, Alternation):
        body = f"(?:{body})"
    return ("" if starts else ANYTHING) + body + ("" if ends else ANYTHING)


def _anchored(node: Node, at_start: bool) -> bool | None:
    """Whether `node` is held to the start (or end) of the text; None where only some of its alternatives are."""
    if isinstance(node, Anchor):
        return node.at_start == at_start
    if isinstance(node, Concatenation):
        for part in node.parts if at_start else reversed(node.parts):
            found = _anchored(part, at_start)
            if found is not False or not isinstance(part, Anchor):
                return found
        return False
    if isinstance(node, Alternation):
        found_set = {_anchored(option, at_start) for option in node.options}
        return found_set.pop() if len(found_set) == 1 else None
    if isinstance(node, Repeat) and (node.minimum, node.maximum) != (1, 1):
        return None if _anchored(node.body, at_start) is not False else False
    return _anchored(node.body, at_start) if isinstance(node, Repeat) else False


class _Writer:
    def __init__(self, place: str) -> None:
        self.place = place

    def write(self, node: Node, at_start: bool, at_end: bool) -> str:
        if isinstance(node, CharacterSet):
            return node.write()
        if isinstance(node, Anchor):
            return self.anchor(node, at_start, at_end)
        if isinstance(node, Alternation):
            return "|".join(self.write(option, at_start, at_end) for option in node.options)
        if isinstance(node, Repeat):
            return self.repeat(node, at_start, at_end)
        return "".join(self.parts(node, at_start, at_end))

    def parts(self, node: Concatenation, at_start: bool, at_end: bool) -> Iterator[str]:
        is_anchor = [_only_anchors(part) for part in node.parts]
        for index, part in enumerate(node.parts):
            starts = at_start and all(is_anchor[:index])
            ends = at_end and all(is_anchor[index + 1 :])
            body = self.write(part, starts, ends)
            yield f"(?:{body})" if isinstance(part, Alternation) else body

    def repeat(self, node: Repeat, at_start: bool, at_end: bool) -> str:
        once = node.maximum == 1
        body = self.write(node.body, at_start and once, at_end and once)
        if not isinstance(node.body, CharacterSet):
            body = f"(?:{body})"
        if (node.minimum, node.maximum) == (0, None):
            return body + "*"
        return f"{body}{{{node.minimum},{'' if node.maximum is None else node.maximum}}}"

    def anchor(self, node: Anchor, at_start: bool, at_end: bool) -> str:
        if not (at_start if node.at_start else at_end):
            where = f"{self.place}: position {node.position}" if self.place else f"position {node.position}"
            name = "^" if node.at_start else "$"
            raise UnsupportedConstraint(where, name, "is supported at the edges of a regular expression only")
        return ""


def _only_anchors(node: Node) -> bool:
    if isinstance(node, Concatenation):
        return all(_only_anchors(part) for part in node.parts)
    return isinstance(node, Anchor)
