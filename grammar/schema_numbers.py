"""Numbers in schemas: which ones the engine can hold exactly. It reads every number as a double."""

from __future__ import annotations

from decimal import Decimal
from math import lcm
from typing import Any

from ..errors import UnsupportedConstraint
from .json_path import Path, show_path

__all__ = ["check_bound", "check_instance", "check_multiple", "integral"]

_EXACT = 2**53
_MAX_COEFFICIENT = 4096  # the engine builds an automaton with a state for each remainder
_MAX_COMMON = 2**32 - 1


def integral(value: int | float) -> int:
    """Counts may be written as 2.0; the meta-schema has seen to it that they are integers."""
    return int(value)


def check_bound(value: int | float, path: Path) -> int | float:
    if abs(value) > _EXACT:
        raise UnsupportedConstraint(show_path(path[:-1]), str(path[-1]), f"beyond 2**53 is not exact: {value}")
    return value


def check_instance(value: Any, path: Path, keyword: str) -> None:
    """`const` and `enum` of the schema at `path`: every number in the instances must be exact as a double."""
    if isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            check_instance(item, path, keyword)
    elif isinstance(value, int | float) and not isinstance(value, bool) and abs(value) > _EXACT:
        raise UnsupportedConstraint(show_path(path), keyword, f"beyond 2**53 is not exact: {value}")


def check_multiple(value: int | float, seen: list[Any], path: Path) -> int | float:
    """`seen` collects the multiples of a schema: where schemas are combined, the engine takes their common multiple."""
    number = Decimal(str(value))
    seen.append(number)
    scale = max(0, *(-int(each.as_tuple().exponent) for each in seen))
    coefficients = [int(each.scaleb(scale)) for each in seen]
    own = int(number.scaleb(max(0, -int(number.as_tuple().exponent))))
    if own > _MAX_COEFFICIENT or lcm(*coefficients) > _MAX_COMMON:
        raise UnsupportedConstraint(show_path(path[:-1]), "multipleOf", f"{value} needs too large an automaton")
    return value
