"""References within one JSON Schema document: `$ref`, `$id`, `$anchor` and JSON pointers. Nothing is ever fetched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from ..errors import CompileBudgetExceeded, InvalidConstraint, UnsupportedConstraint
from .json_path import Path, show_path
from .support import Draft

__all__ = ["References", "subschemas"]

_IN_MAP = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
_IN_LIST = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_SINGLE = (
    "items additionalItems additionalProperties unevaluatedItems unevaluatedProperties contains propertyNames "
    "not if then else contentSchema"
).split()

_MOST_SCHEMAS = 10_000  # a thousand take up to a second until they are compiled or refused


def subschemas(node: dict[str, Any]) -> Iterator[tuple[Path, Any]]:
    """The schemas directly within the schema `node`, each with its path from there."""
    for keyword, value in node.items():
        if keyword in _IN_MAP and isinstance(value, dict):
            for name, child in value.items():
                if isinstance(child, dict | bool):
                    yield (keyword, name), child
        elif keyword in _IN_LIST and isinstance(value, list):
            for index, child in enumerate(value):
                yield (keyword, index), child
        elif keyword in _SINGLE and isinstance(value, dict | bool):
            yield (keyword,), value


class References:
    """Where each reference of `root` leads."""

    def __init__(self, root: Any, draft: Draft) -> None:
        self.root = root
        self.draft = draft
        self._resources: dict[str, Path] = {"": ()}
        self._anchors: dict[tuple[str, str], Path] = {}
        self._bases: dict[Path, str] = {(): ""}
        self.schemas: set[Path] = set()  # the places where the draft expects schemas
        self._index(root)

    def _index(self, root: Any) -> None:
        pending: list[tuple[Path, Any, str]] = [((), root, "")]
        while pending:
            path, node, base = pending.pop()
            self.schemas.add(path)
            if len(self.schemas) > _MOST_SCHEMAS:
                raise CompileBudgetExceeded("schemas", f"more than {_MOST_SCHEMAS} schemas within one")
            if not isinstance(node, dict):
                continue
            base = self._enter(path, node, base)
            pending += [(path + below, child, base) for below, child in subschemas(node)]

    def _enter(self, path: Path, node: dict[str, Any], base: str) -> str:
        identifier = node.get("id" if self.draft is Draft.DRAFT4 else "$id")
        ignored = "$ref" in node and self.draft.number <= 7
        if isinstance(identifier, str) and not ignored:
            uri, fragment = urldefrag(identifier)
            if uri:
                base = urljoin(base, uri)
                self._resources[base] = path
                self._bases[path] = base
            if fragment and self.draft.number <= 7:
                self._anchors[base, fragment] = path
        for keyword in ("$anchor", "$dynamicAnchor"):
            if self.draft.number >= 2019 and isinstance(node.get(keyword), str):
                self._anchors[base, node[keyword]] = path
        return base

    def _base_of(self, path: Path) -> str:
        for length in range(len(path), -1, -1):
            if path[:length] in self._bases:
                return self._bases[path[:length]]
        return ""

    def resolve(self, reference: str, path: Path) -> Path:
        """The path of the schema to which `reference`, in the schema at `path`, points."""
        base = self._base_of(path)
        uri, fragment = urldefrag(reference)
        target = urljoin(base, uri) if uri else base
        if target not in self._resources:
            message = f"leads to {reference!r} outside of the schema; nothing is fetched"
            raise UnsupportedConstraint(show_path(path), "$ref", message)
        found = self._resources[target]
        fragment = unquote(fragment)
        if not fragment.startswith("/"):
            found = self._anchors.get((target, fragment), found) if fragment else found
            if fragment and (target, fragment) not in self._anchors:
                raise InvalidConstraint(show_path((*path, "$ref")), f"no anchor {fragment!r} in the schema")
            return found
        for part in fragment[1:].split("/"):
            name = part.replace("~1", "/").replace("~0", "~")
            parent = self.at(found)
            found += (int(name) if isinstance(parent, list) and name.isdigit() else name,)
            if not _has(parent, found[-1]):
                raise InvalidConstraint(show_path((*path, "$ref")), f"{reference!r} points to nothing")
        return found

    def at(self, path: Path) -> Any:
        node = self.root
        for part in path:
            node = node[part]
        return node


def _has(node: Any, part: str | int) -> bool:
    if isinstance(node, list):
        return isinstance(part, int) and part < len(node)
    return isinstance(node, dict) and part in node
