"""Character sets as ranges of code points, for engines that take no Unicode classes of our spelling."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

from .regex_classes import CharacterSet

__all__ = ["OpaqueSet", "Ranges", "code_points"]

Ranges = tuple[tuple[int, int], ...]

_LAST = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)  # no characters: they have no UTF-8
_CHARACTER = re.compile(r"\\x\{([0-9a-f]+)\}|([0-9A-Za-z_])")


class OpaqueSet(Exception):
    """A set whose characters only an engine's own Unicode tables know. `name` is how a pattern writes it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@lru_cache(maxsize=1024)
def code_points(characters: CharacterSet) -> Ranges:
    """The ranges, sorted and apart from each other, without surrogates. Raises OpaqueSet."""
    if characters.ignore_case:
        raise OpaqueSet("IGNORECASE")
    found = _merged(pair for item in characters.items for pair in _item(item))
    return _without_surrogates(_others(found) if characters.negated else found)


def _item(text: str) -> Iterator[tuple[int, int]]:
    """A fragment of a class: characters and ranges, or a class of its own."""
    if text.startswith("[") and text.endswith("]"):
        negated = text.startswith("[^")
        found = _merged(_item(text[2 if negated else 1 : -1]))
        yield from _others(found) if negated else found
        return
    position = 0
    while position < len(text):
        low, position = _character(text, position)
        high = low
        if text[position : position + 1] == "-":
            high, position = _character(text, position + 1)
        yield low, high


def _character(text: str, position: int) -> tuple[int, int]:
    match = _CHARACTER.match(text, position)
    if match is None:
        raise OpaqueSet(text[position:])
    return int(match[1], 16) if match[1] else ord(match[2]), match.end()


def _merged(pairs: Iterable[tuple[int, int]]) -> Ranges:
    out: list[tuple[int, int]] = []
    for low, high in sorted(pairs):
        if out and low <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(out[-1][1], high))
        else:
            out.append((low, high))
    return tuple(out)


def _others(ranges: Ranges) -> Ranges:
    out, begin = [], 0
    for low, high in ranges:
        if begin < low:
            out.append((begin, low - 1))
        begin = high + 1
    return (*out, (begin, _LAST)) if begin <= _LAST else tuple(out)


def _without_surrogates(ranges: Ranges) -> Ranges:
    first, last = _SURROGATES
    parts = (
        (max(low, begin), min(high, end)) for low, high in ranges for begin, end in ((0, first - 1), (last + 1, _LAST))
    )
    return tuple((low, high) for low, high in parts if low <= high)
