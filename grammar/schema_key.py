"""When two schemas mean the same, as far as a cache may know: it tells too many apart rather than too few."""

from __future__ import annotations

import json
from typing import Any

from .schema_references import subschemas

__all__ = ["schema_key"]

# Properties come in the order in which the schema lists them, those of its other parts included: the order of these
# keywords among each other is part of the meaning.
_ORDERED = frozenset({"properties", "$ref", "allOf", "anyOf", "oneOf"})


def schema_key(text: str) -> str:
    """Equal for schemas that differ in nothing but spelling.

    The order of keywords doesn't matter, with the exception above, nor does that of the names in `type`, of plain
    values in `enum` and of those keys in `required` that `properties` puts in an order. The order of `properties`,
    of other required keys and of the values within `const` and `enum` is that of the text to be written. The order of
    `anyOf` and `oneOf` would not matter to the text, but paths in reports name their parts by number.
    """
    return json.dumps(_schema(json.loads(text)), ensure_ascii=False, separators=(",", ":"))


def _schema(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    children = {path: _schema(child) for path, child in subschemas(node)}
    keywords = [keyword for keyword in node if keyword in _ORDERED]
    keywords += sorted(keyword for keyword in node if keyword not in _ORDERED)
    return {keyword: _value(node, keyword, children) for keyword in keywords}


def _value(node: dict[str, Any], keyword: str, children: dict[tuple[str | int, ...], Any]) -> Any:
    value = node[keyword]
    if (keyword,) in children:
        return children[(keyword,)]
    if keyword == "required":
        return _required(value, node.get("properties"))
    if keyword in ("type", "enum"):
        return _unordered(value)
    if isinstance(value, dict):
        return {name: children.get((keyword, name), part) for name, part in value.items()}
    if isinstance(value, list):
        return [children.get((keyword, index), part) for index, part in enumerate(value)]
    return value


def _required(value: Any, properties: Any) -> Any:
    if not isinstance(properties, dict) or not _consists_of(value, str):
        return value
    return sorted(name for name in value if name in properties) + [name for name in value if name not in properties]


def _unordered(value: Any) -> Any:
    """A reference may lead to a value in `enum` that could be a schema: lists with such values stay as they are."""
    return sorted(value, key=json.dumps) if _consists_of(value, str, int, float, type(None)) else value


def _consists_of(value: Any, *types: type) -> bool:
    return isinstance(value, list) and all(type(item) in types for item in value)
