"""What the engines of regular languages share: libraries that load when they are asked for, and sets by their names."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DrawloomError, InvalidConstraint, UnsupportedConstraint
from ..character_ranges import OpaqueSet
from ..engine import Bitmask, EngineMatcher, EngineRefusal
from ..regex_nodes import Node
from ..regular_states import sets

__all__ = ["RegularEngine", "check_sets", "load_library", "pack_bits"]


class RegularEngine:
    """The part of a `GrammarEngine` that says nothing before it compiles, and fills one row after the other."""

    def probe(self, lark: str) -> EngineRefusal | None:
        return None

    def fill_batch(self, matchers: Sequence[tuple[EngineMatcher, int]], bitmask: Bitmask) -> dict[int, DrawloomError]:
        errors: dict[int, DrawloomError] = {}
        for index, (matcher, row) in enumerate(matchers):
            try:
                matcher.fill(bitmask[row])
            except DrawloomError as error:
                bitmask[row] = 0
                errors[index] = error
        return errors


def load_library(module: str, engine: str) -> Any:
    """The module of an optional library. Raises InvalidConstraint, which says what to install."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise InvalidConstraint("engines", f"{engine!r} is not installed: pip install drawloom[engines]") from None


def pack_bits(token_ids: NDArray[np.int64], size: int) -> Bitmask:
    """A row of a bitmask of `size` tokens in which the bits of `token_ids` are on."""
    bits = np.zeros((size + 31) // 32 * 32, dtype=np.uint8)
    bits[token_ids] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


def check_sets(node: Node, engine: str) -> None:
    """Raises UnsupportedConstraint for a set of characters that only Unicode tables know, by its name."""
    try:
        for ranges in sets(node):
            if not ranges:
                raise OpaqueSet("a class without characters")
    except OpaqueSet as opaque:
        message = f"is not served by {engine}, which takes plain characters and ranges alone"
        raise UnsupportedConstraint("$", opaque.name, message) from None
