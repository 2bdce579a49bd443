"""JSON Schema, lowered to a smaller one: one dialect, references by name, nothing that the engine doesn't enforce.

Every keyword of every reachable schema goes through the table in `support`; what comes out holds enforced keywords
alone, so that nothing depends on how an engine treats the rest. The meaning stays the same, with two exceptions that
only ever make the language smaller: keys take no escapes that they don't need, and siblings of `$ref` count in every
draft.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from ..errors import InvalidConstraint, UnsupportedConstraint
from .formats import ASSERTED_FORMATS
from .json_path import Path, show_path
from .object_keys import close_object
from .regex_emit import write_search
from .regex_syntax import parse_regex
from .schema_check import check_schema, find_draft
from .schema_numbers import check_bound, check_instance, check_multiple, integral
from .schema_references import References
from .support import KEYWORDS, Draft, Treatment, classify_unknown

__all__ = ["LoweredSchema", "NeedsPlainEscapes", "lower_schema"]

Schema = dict[str, Any] | bool

_MAX_INLINES = 1_000


class NeedsPlainEscapes(Exception):
    """The schema tells keys apart in a way that holds only if no text has two spellings."""


@dataclass
class LoweredSchema:
    """`root` refers to `definitions` as ``#/$defs/NAME``. `paths` says where each lowered object came from."""

    root: Schema
    definitions: dict[str, Schema]
    report: dict[str, str]
    unicode_escapes: bool
    paths: list[tuple[Path, dict[str, Any]]]

    def document(self, node: Schema | None = None) -> Schema:
        """`root`, or another node of it, as a document of its own."""
        chosen = self.root if node is None else node
        return {**chosen, "$defs": self.definitions} if isinstance(chosen, dict) else chosen


def lower_schema(text: str, *, formats: str, unicode_escapes: bool) -> LoweredSchema:
    """Lowers the schema in `text`.

    Raises:
        InvalidConstraint, UnsupportedConstraint: with the JSON path of the keyword.
        NeedsPlainEscapes: only with `unicode_escapes`; then call again without.
    """
    root = json.loads(text)
    draft = find_draft(root)
    check_schema(root, draft, ())
    lowering = _Lowering(root, draft, formats, unicode_escapes)
    lowered = lowering.lower(root, ())
    lowering.lower_pending()
    return LoweredSchema(lowered, lowering.definitions, lowering.report, unicode_escapes, lowering.paths)


@dataclass
class _Lowering:
    document: Any
    draft: Draft
    formats: str
    unicode_escapes: bool
    definitions: dict[str, Schema] = field(default_factory=dict)
    report: dict[str, str] = field(default_factory=dict)
    paths: list[tuple[Path, dict[str, Any]]] = field(default_factory=list)
    _names: dict[Path, str] = field(default_factory=dict)
    _pending: list[Path] = field(default_factory=list)
    multiples: list[Any] = field(default_factory=list)
    inlining: list[Path] = field(default_factory=list)  # the targets of references within which `lower` is at work
    inlines: int = 0

    def __post_init__(self) -> None:
        self.references = References(self.document, self.draft)

    def lower_pending(self) -> None:
        while self._pending:
            path = self._pending.pop()
            self.definitions[self._names[path]] = self.lower(self.references.at(path), path)

    def lower(self, node: Any, path: Path) -> Schema:
        if isinstance(node, bool):
            return node
        if not isinstance(node, dict):
            raise InvalidConstraint(show_path(path), f"a schema is an object or a boolean, not {node!r}")
        out: dict[str, Any] = {}
        for keyword, value in node.items():
            where = (*path, keyword)
            treatment = self.treatment(keyword, node, path)
            self.report[show_path(where)] = treatment.value
            if treatment is Treatment.ENFORCED:
                _RULES.get(keyword, _keep)(self, node, keyword, value, where, out)
        if self.draft.number < 6:
            _boolean_exclusive(out)
        lowered = close_object(out, path, self.report, NeedsPlainEscapes if self.unicode_escapes else None)
        self.paths.append((path, lowered))
        return lowered

    def treatment(self, keyword: str, node: dict[str, Any], path: Path) -> Treatment:
        known = KEYWORDS.get(keyword)
        treatment = known.treatment if known else classify_unknown(keyword)
        if known and not known.known_to(self.draft) and treatment is not Treatment.STRUCTURE:
            raise UnsupportedConstraint(show_path(path), keyword, f"is not a keyword of {self.draft.name}")
        if treatment is Treatment.UNSUPPORTED and not _without_effect(keyword, node):
            hint = "is not supported" if known else "is no keyword of JSON Schema; an annotation may be called x-..."
            raise UnsupportedConstraint(show_path(path), keyword, hint)
        return Treatment.WITHOUT_EFFECT if treatment is Treatment.UNSUPPORTED else treatment

    def reference(self, reference: str, path: Path) -> str:
        """The name of the definition to which `reference` leads."""
        target = self.references.resolve(reference, path)
        if target not in self._names:
            if target not in self.references.schemas:
                check_schema(self.references.at(target), self.draft, target)
            self._names[target] = f"d{len(self._names)}"
            self._pending.append(target)
        return self._names[target]


def _without_effect(keyword: str, node: dict[str, Any]) -> bool:
    if keyword == "uniqueItems":
        return node[keyword] is False
    if keyword in ("then", "else"):
        return "if" not in node
    if keyword == "if":
        return "then" not in node and "else" not in node
    return keyword in ("minContains", "maxContains") and "contains" not in node


# Rules: each writes the lowered form of one keyword into `out`.

Node = dict[str, Any]
Out = dict[str, Any]
Rule = Callable[[_Lowering, Node, str, Any, Path, Out], None]


def _keep(lowering: _Lowering, node: Node, keyword: str, value: Any, path: Path, out: Out) -> None:
    out[keyword] = value


def _reference(lowering: _Lowering, node: Node, keyword: str, value: Any, path: Path, out: Out) -> None:
    out["$ref"] = f"#/$defs/{lowering.reference(value, path[:-1])}"
    if lowering.draft.number <= 7 and len(node) > 1:
        lowering.report[show_path(path)] += "; its siblings count as well, though not in this draft"


def _one(lowering: _Lowering, node: Node, keyword: str, value: Any, path: Path, out: Out) -> None:
    out[keyword] = lowering.lower(value, path)


def _list(lowering: _Lowering, node: Node, keyword: str, value: Any, path: Path, out: Out) -> None:
    out[keyword] = [lowering.lower(child, (*path, index)) for index, child in enumerate(value)]


def _one_of(lowering: _Lowering, node: Node, keyword: str, value: Any, path: Path, out: Out) -> None:
    """References give way to what they lead to: the engine proves branches disjoint only where it sees them."""
    branches = []
    for index, child in enumerate(value):
        where: Path = (*path, index)
        inlined: list[Path] = []
        while _is_reference(child) and lowering.inlines < _MAX_INLINES:
            where = lowering.references.resolve(child["$ref"], where)
            if where in lowering.inlining or where in inlined:
                raise UnsupportedConstraint(show_path(path[:-1]), "oneOf", "has a branch that leads back to it")
            inlined.append(where)
            child = lowering.references.at(where)
            lowering.inlines += 1
        lowering.inlining.extend(inlined)
        branches.append(lowering.lower(child, where))
        del lowering.inlining[len(lowering.inlining) - len(inlined) :]
    out["oneOf"] = branches


def _is_reference(node: Any) -> bool:
    return isinstance(node, dict) and isinstance(node.get("$ref"), str) and _only_annotated(node, "$ref")


def _only_annotated(node: Node, keyword: str) -> bool:
    rest = (KEYWORDS.get(name) for name in node if name != keyword)
    return all(known is not None and known.treatment is Treatment.ANNOTATION for known in rest)


def _map(lowering: _Lowering, node: Node, keyword: str, value: Any, path: Path, out: Out) -> None:
    out[keyword] = {name: lowering.lower(child, (*path, name)) for name, child in value.items()}


def _pattern_map(lowering: _Lowering, node: Node, keyword: str, value: Any, path: Path, out: Out) -> None:
    lowered: dict[str, Schema] = {}
    for pattern, child in value.items():
        written = write_pattern(pattern, (*path, pattern))
        if written in lowered:
            raise UnsupportedConstraint(show_path(path[:-1]), keyword, f"gives {pattern!r} twice in two spellings")
        lowered[written] = lowering.lower(child, (*path, pattern))
    out[keyword] = lowered


def _items(lowering: _Lowering, node: Node, keyword: str, value: Any, path: Path, out: Out) -> None:
    if isinstance(value, list):
        _list(lowering, node, "prefixItems", value, path, out)
    else:
        _one(lowering, node, keyword, value, path, out)


def _additional_items(lowering: _Lowering, node: Node, keyword: str, value: Any, path: Path, out: Out) -> None:
    if isinstance(node.get("items"), list):
        _one(lowering, node, "items", value, path, out)
    else:
        lowering.report[show_path(path)] = "without effect beside an `items` that is no list"


def _count(lowering: _Lowering, node: Node, keyword: str, value: Any, path: Path, out: Out) -> None:
    out[keyword] = integral(value)


def _bound(lowering: _Lowering, node: Node, keyword: str, value: Any, path: Path, out: Out) -> None:
    out[keyword] = value if isinstance(value, bool) else check_bound(value, path)


def _multiple(lowering: _Lowering, node: Node, keyword: str, value: Any, path: Path, out: Out) -> None:
    out[keyword] = check_multiple(value, lowering.multiples, path)


def _instances(lowering: _Lowering, node: Node, keyword: str, value: Any, path: Path, out: Out) -> None:
    check_instance(value, path[:-1], keyword)
    out[keyword] = value


def _pattern(lowering: _Lowering, node: Node, keyword: str, value: Any, path: Path, out: Out) -> None:
    out[keyword] = write_pattern(value, path)
    lowering.report[show_path(path)] += "; printable characters are written without \\u escapes"


def _format(lowering: _Lowering, node: Node, keyword: str, value: Any, path: Path, out: Out) -> None:
    known = ASSERTED_FORMATS.get(value)
    if known is None:
        if lowering.formats == "refuse":
            raise UnsupportedConstraint(show_path(path[:-1]), keyword, f"{value!r} can't be asserted")
        lowering.report[show_path(path)] = Treatment.ANNOTATION.value
        return
    asserted: list[dict[str, Any]] = [{"pattern": _format_pattern(pattern)} for pattern in known.patterns]
    if known.max_length is not None:
        asserted.append({"maxLength": known.max_length})
    if "pattern" not in node:
        out.update(asserted.pop(0))
    if asserted:
        out["allOf"] = [*out.get("allOf", []), *asserted]


def _all_of(lowering: _Lowering, node: Node, keyword: str, value: Any, path: Path, out: Out) -> None:
    out["allOf"] = [*out.get("allOf", []), *(lowering.lower(child, (*path, i)) for i, child in enumerate(value))]


def write_pattern(pattern: str, path: Path) -> str:
    """A JSON Schema pattern (found anywhere in the text) as one that the engine matches against the whole text."""
    place = show_path(path)
    return f"^(?:{write_search(parse_regex(pattern, 'ecma', place=place), place)})$"


@lru_cache
def _format_pattern(pattern: str) -> str:
    return write_pattern(pattern, ("format",))


def _boolean_exclusive(out: dict[str, Any]) -> None:
    """Draft 4: ``exclusiveMinimum: true`` makes `minimum` exclusive."""
    for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if out.pop(exclusive, False) and bound in out:
            out[exclusive] = out.pop(bound)


_RULES: Mapping[str, Rule] = {
    "$ref": _reference,
    "additionalProperties": _one,
    "items": _items,
    "additionalItems": _additional_items,
    "prefixItems": _list,
    "anyOf": _list,
    "allOf": _all_of,
    "oneOf": _one_of,
    "properties": _map,
    "patternProperties": _pattern_map,
    "const": _instances,
    "enum": _instances,
    "pattern": _pattern,
    "format": _format,
    "minimum": _bound,
    "maximum": _bound,
    "exclusiveMinimum": _bound,
    "exclusiveMaximum": _bound,
    "multipleOf": _multiple,
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _count),
}
