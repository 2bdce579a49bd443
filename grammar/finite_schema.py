"""Which lowered schemas have a finite text at all: endless required recursion is found here, no engine does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .json_path import Path
from .json_schema import LoweredSchema, Schema

__all__ = ["bar_definitions", "bar_endless", "has_finite_text", "required_parts", "blamed_path"]

_SCALARS = frozenset({"null", "boolean", "number", "integer", "string"})
_TYPES = (*_SCALARS, "array", "object")


def bar_endless(lowered: LoweredSchema) -> None:
    """Replaces the references to definitions that no finite text satisfies by `false`.

    The least fixpoint over "has a finite text, as far as structure tells": what isn't reached needs infinitely many.
    """
    finite: set[str] = set()
    rest = set(lowered.definitions)
    while found := {name for name in rest if _is_finite(lowered.definitions[name], finite)}:
        finite |= found
        rest -= found
    bar_definitions(lowered, rest)


def has_finite_text(lowered: LoweredSchema, node: Schema) -> bool:
    """Whether `node` may have a finite text, as far as its structure tells. After `bar_endless`."""
    return _is_finite(node, set(lowered.definitions))


def bar_definitions(lowered: LoweredSchema, names: set[str]) -> None:
    """Puts `false` in the place of every reference to `names`; an engine may refuse a definition that is `false`."""
    if not names:
        return

    def barred(node: Schema) -> Schema:
        reference = node.get("$ref", "") if isinstance(node, dict) else ""
        return False if reference.rpartition("/")[2] in names else node

    lowered.root = barred(lowered.root)
    lowered.definitions = {name: barred(node) for name, node in lowered.definitions.items() if name not in names}
    for _, node in lowered.paths:
        for keyword, value in node.items():
            if keyword in ("properties", "patternProperties"):
                node[keyword] = {name: barred(part) for name, part in value.items()}
            elif keyword in ("anyOf", "allOf", "oneOf", "prefixItems"):
                node[keyword] = [barred(part) for part in value]
            elif keyword in ("items", "additionalProperties"):
                node[keyword] = barred(value)


def _is_finite(node: Schema, finite: set[str]) -> bool:
    if isinstance(node, bool):
        return node
    if "$ref" in node and node["$ref"].rpartition("/")[2] not in finite:
        return False
    if not all(_is_finite(part, finite) for part in node.get("allOf", ())):
        return False
    for keyword in ("anyOf", "oneOf"):
        if keyword in node and not any(_is_finite(part, finite) for part in node[keyword]):
            return False
    types = node.get("type", _TYPES)
    types = [types] if isinstance(types, str) else types
    return any(
        name in _SCALARS or all(_is_finite(part, finite) for _, part in _required_of_type(node, name)) for name in types
    )


def _required_of_type(node: dict[str, Any], name: str) -> Iterator[tuple[Path, Schema]]:
    if name == "object":
        properties = node.get("properties", {})
        for key in node.get("required", ()):
            if key in properties:
                yield ("properties", key), properties[key]
            elif "patternProperties" not in node:
                yield ("additionalProperties",), node.get("additionalProperties", True)
    elif name == "array":
        prefix = node.get("prefixItems", [])
        minimum = node.get("minItems", 0)
        yield from ((("prefixItems", index), part) for index, part in enumerate(prefix[:minimum]))
        if minimum > len(prefix):
            yield ("items",), node.get("items", True)


def required_parts(node: dict[str, Any]) -> Iterator[tuple[Path, Schema]]:
    """The schemas without a text of which `node` has none, each with its path from there."""
    for index, part in enumerate(node.get("allOf", ())):
        yield ("allOf", index), part
    types = node.get("type")
    if isinstance(types, list) and len(types) == 1:
        types = types[0]
    if isinstance(types, str):
        yield from _required_of_type(node, types)


def blamed_path(lowered: LoweredSchema, is_empty: Callable[[Schema], bool]) -> Path:
    """The deepest schema that has to hold and that `is_empty` says no text satisfies."""
    origin = {id(node): path for path, node in lowered.paths}
    node: Schema = lowered.root
    path: Path = ()
    seen: set[int] = set()
    while isinstance(node, dict) and id(node) not in seen:
        seen.add(id(node))
        for below, part in required_parts(node):
            part_path = origin.get(id(part), (*path, *below))
            part, part_path = _followed(lowered, part, part_path, origin)
            if is_empty(part):
                node, path = part, part_path
                break
        else:
            break
    return path


def _followed(lowered: LoweredSchema, node: Schema, path: Path, origin: dict[int, Path]) -> tuple[Schema, Path]:
    if isinstance(node, dict) and set(node) == {"$ref"}:
        target = lowered.definitions[node["$ref"].rpartition("/")[2]]
        return target, origin.get(id(target), path)
    return node, path
