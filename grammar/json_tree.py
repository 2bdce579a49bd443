"""The texts of a lowered schema as a regular language, for what is one: closed objects, no recursion, no `pattern`.

The table in `support` says which keywords are said exactly; every other is refused with its path.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import CompileBudgetExceeded, UnsupportedConstraint
from .json_path import Path, show_path
from .json_schema import LoweredSchema, Schema
from .regex_nodes import Alternation, Concatenation, Node, Repeat, literal
from .regex_syntax import parse_regex
from .support import REGULAR_KEYWORDS

__all__ = ["write_tree"]

_MAX_NODES = 20_000
_MAX_OPTIONAL = 12  # each may come first, and all that follow are written again behind it
_UNIT = (
    r'[^\x00-\x1f"\\]|\\["\\/bfnrt]|\\u(?:[0-9A-CEFa-cef][0-9A-Fa-f]{3}|[Dd][0-7][0-9A-Fa-f]{2}'
    r"|[Dd][89ABab][0-9A-Fa-f]{2}\\u[Dd][C-Fc-f][0-9A-Fa-f]{2})"
)
_NUMBERS = {"integer": "-?(?:0|[1-9][0-9]*)", "number": r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"}
# What the lowering writes for what stands in the schema.
_WRITTEN_FOR = {"pattern": "format", "allOf": "format", "patternProperties": "additionalProperties"}
_ANYTHING = "needs a type beside it: any value is no regular language"
_OPEN = "is served by llguidance alone; `additionalProperties: false` is served here"
_TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")


def write_tree(lowered: LoweredSchema, whitespace: str | int) -> Node:
    """Raises UnsupportedConstraint, CompileBudgetExceeded."""
    if isinstance(whitespace, int) and whitespace > 0:
        raise UnsupportedConstraint(
            "$", "whitespace", "other than 'spaced' and 'compact' is served by llguidance alone"
        )
    spaced = whitespace == "spaced"
    return _Writer(lowered, ", " if spaced else ",", ": " if spaced else ":").write(lowered.root, ())


@dataclass
class _Writer:
    lowered: LoweredSchema
    comma: str
    colon: str
    count: int = 0
    inside: tuple[str, ...] = ()  # the definitions within which `write` is at work

    def __post_init__(self) -> None:
        self.places = {id(node): path for path, node in self.lowered.paths}

    def write(self, node: Schema, path: Path) -> Node:
        self.count += 1
        if self.count > _MAX_NODES:
            raise CompileBudgetExceeded("schema", f"more than {_MAX_NODES} parts, references written out")
        if node is False:
            raise self.refused(path, "false", "has no text")
        if node is True:
            raise self.refused(path, "type", _ANYTHING)
        path = self.places.get(id(node), path)
        if "$ref" in node:
            return self.reference(node, path)
        if "anyOf" in node:
            self.allow(node, path, ("anyOf",))
            parts = [(index, part) for index, part in enumerate(node["anyOf"]) if part is not False]
            if not parts:
                raise self.refused(path, "anyOf", "has no branch with a text")
            return Alternation(tuple(self.write(part, (*path, "anyOf", index)) for index, part in parts))
        for keyword in ("const", "enum"):
            if keyword in node:
                return self.instances(node, keyword, path)
        return self.typed(node, path)

    def refused(self, path: Path, keyword: str, message: str) -> UnsupportedConstraint:
        if show_path((*path, keyword)) not in self.lowered.report:
            keyword = _WRITTEN_FOR.get(keyword, keyword)
        return UnsupportedConstraint(show_path(path), keyword, message)

    def allow(self, node: dict[str, Any], path: Path, keywords: Sequence[str]) -> None:
        for keyword in node:
            if keyword not in keywords:
                raise self.refused(path, keyword, "is served here by llguidance alone")

    def counts(self, node: dict[str, Any], path: Path, least: str, most: str) -> tuple[int, int | None]:
        minimum, maximum = node.get(least, 0), node.get(most)
        if maximum is not None and maximum < minimum:
            raise self.refused(path, most, f"is below {least}")
        return minimum, maximum

    def reference(self, node: dict[str, Any], path: Path) -> Node:
        self.allow(node, path, ("$ref",))
        name = node["$ref"].rpartition("/")[2]
        if name in self.inside:
            raise self.refused(path, "$ref", "leads back to where it stands: recursion is served by llguidance alone")
        outside, self.inside = self.inside, (*self.inside, name)
        found = self.write(self.lowered.definitions[name], path)
        self.inside = outside
        return found

    def instances(self, node: dict[str, Any], keyword: str, path: Path) -> Node:
        self.allow(node, path, (keyword, "type"))
        values = node["enum"] if keyword == "enum" else [node["const"]]
        types = node.get("type", _TYPES)
        kept = [value for value in values if _is_of(value, [types] if isinstance(types, str) else types)]
        if not kept:
            raise self.refused(path, keyword, "has no value of its type")
        if any(_has_float(value) for value in kept):
            raise self.refused(path, keyword, "with fractions is served by llguidance alone")
        texts = (json.dumps(value, ensure_ascii=False, separators=(self.comma, self.colon)) for value in kept)
        return Alternation(tuple(map(literal, dict.fromkeys(texts))))

    def typed(self, node: dict[str, Any], path: Path) -> Node:
        if "type" not in node:
            raise self.refused(path, next(iter(node), "type"), _ANYTHING)
        types = [node["type"]] if isinstance(node["type"], str) else node["type"]
        if "object" in types and "patternProperties" in node:
            raise self.refused(path, "patternProperties", _OPEN)
        self.allow(node, path, ("type", *(keyword for name in types for keyword in REGULAR_KEYWORDS.get(name, ()))))
        return Alternation(tuple(getattr(self, f"{name}_type")(node, path) for name in types))

    def null_type(self, node: dict[str, Any], path: Path) -> Node:
        return literal("null")

    def boolean_type(self, node: dict[str, Any], path: Path) -> Node:
        return Alternation((literal("true"), literal("false")))

    def integer_type(self, node: dict[str, Any], path: Path) -> Node:
        return parse_regex(_NUMBERS["integer"], "ecma")

    def number_type(self, node: dict[str, Any], path: Path) -> Node:
        return parse_regex(_NUMBERS["number"], "ecma")

    def string_type(self, node: dict[str, Any], path: Path) -> Node:
        units = Repeat(parse_regex(_UNIT, "ecma"), *self.counts(node, path, "minLength", "maxLength"))
        return Concatenation((literal('"'), units, literal('"')))

    def array_type(self, node: dict[str, Any], path: Path) -> Node:
        minimum, maximum = self.counts(node, path, "minItems", "maxItems")
        if maximum == 0 or (minimum == 0 and node.get("items") is False):
            return literal("[]")
        item = self.write(node.get("items", True), (*path, "items"))
        most = None if maximum is None else maximum - 1
        more = Repeat(Concatenation((literal(self.comma), item)), max(minimum - 1, 0), most)
        some = Concatenation((item, more))
        inside = some if minimum else Repeat(some, 0, 1)
        return Concatenation((literal("["), inside, literal("]")))

    def object_type(self, node: dict[str, Any], path: Path) -> Node:
        if node.get("additionalProperties", True) is not False:
            raise self.refused(path, "additionalProperties", _OPEN)
        properties, required = node.get("properties", {}), set(node.get("required", ()))
        if not required <= set(properties):
            raise self.refused(path, "required", "names a key that no property describes")
        members: list[tuple[bool, Node]] = [
            (name in required, Concatenation((literal(self.key(name)), self.write(part, (*path, "properties", name)))))
            for name, part in properties.items()
            if part is not False or name in required
        ]
        if sum(not needed for needed, _ in members) > _MAX_OPTIONAL:
            raise self.refused(path, "properties", f"with more than {_MAX_OPTIONAL} optional ones is too large here")
        return Concatenation((literal("{"), self.members(members), literal("}")))

    def key(self, name: str) -> str:
        return json.dumps(name, ensure_ascii=False) + self.colon

    def members(self, members: list[tuple[bool, Node]]) -> Node:
        """One alternative for each member that may come first; those behind it carry their comma."""
        options: list[Node] = []
        for index, (needed, member) in enumerate(members):
            rest = (self.follower(*each) for each in members[index + 1 :])
            options.append(Concatenation((member, *rest)))
            if needed:
                return Alternation(tuple(options))
        return Alternation((*options, Concatenation()))

    def follower(self, needed: bool, member: Node) -> Node:
        return Repeat(Concatenation((literal(self.comma), member)), int(needed), 1)


def _is_of(value: Any, types: Sequence[str]) -> bool:
    if value is None or isinstance(value, bool):
        return ("null" if value is None else "boolean") in types
    if isinstance(value, int | float):
        return "number" in types or ("integer" in types and value == int(value))
    return ("string" if isinstance(value, str) else "array" if isinstance(value, list) else "object") in types


def _has_float(value: Any) -> bool:
    if isinstance(value, list | dict):
        return any(map(_has_float, value.values() if isinstance(value, dict) else value))
    return isinstance(value, float)
