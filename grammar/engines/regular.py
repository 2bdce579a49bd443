"""What the engines of regular languages share: libraries that load when they are asked for, and sets by their names."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidConstraint, UnsupportedConstraint
from ..character_ranges import OpaqueSet
from ..engine import Bitmask
from ..regex_nodes import Node
from ..regular_states import sets

__all__ = ["check_sets", "load_library", "pack_bits"]


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
