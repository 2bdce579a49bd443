"""The grammar of JSON texts under a schema, and the place in the schema at which an engine's refusal points."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import CompileBudgetExceeded, ConstraintError, UnsatisfiableConstraint, UnsupportedConstraint
from .constraint import JSONSchema
from .engine import EngineRefusal, Probe
from .finite_schema import bar_definitions, bar_endless, blamed_path, has_finite_text
from .json_path import Path, show_path
from .json_schema import LoweredSchema, NeedsPlainEscapes, Schema, lower_schema
from .schema_depth import check_depth, check_text_depth

__all__ = ["JSONGrammar"]

_MAX_PROBES = 200
_DEFINITION = re.compile(r"while processing \S*#/\$defs/(\w+)")
_ENGINE_OPTION = re.compile(r"\s*Enable '\w+' option.*", re.DOTALL)  # a hint at what our users can't set


@dataclass
class JSONGrammar:
    """`Lowered` of a JSONSchema."""

    constraint: JSONSchema
    lowered: LoweredSchema

    @classmethod
    def of(cls, constraint: JSONSchema, unicode_escapes: bool = True) -> JSONGrammar:
        _refuse_unbuilt(constraint)
        try:
            lowered = lower_schema(constraint.text, formats=constraint.formats, unicode_escapes=unicode_escapes)
        except NeedsPlainEscapes:
            return cls.of(constraint, unicode_escapes=False)
        if not unicode_escapes:
            lowered.report["$"] = "strings take no \\u escapes: the keys of an object couldn't be told apart otherwise"
        check_depth(lowered)
        bar_endless(lowered)
        if not has_finite_text(lowered, lowered.root):
            path = blamed_path(lowered, lambda node: not has_finite_text(lowered, node))
            raise UnsatisfiableConstraint(show_path(path), "no finite text can satisfy this")
        return cls(constraint, lowered)

    @property
    def lark(self) -> str:
        return self._lark(self.lowered.root)

    @property
    def report(self) -> Mapping[str, str]:
        return self.lowered.report

    def _lark(self, node: Schema) -> str:
        literal, count = self.literal(node), self.constraint.whitespace
        if isinstance(count, int) and count > 0:
            return f"start: WS? value WS?\nvalue: %json {literal}\nWS: /{_whitespace(count)}/"
        return f"start: %json {literal}"

    def literal(self, node: Schema) -> str:
        """What stands behind ``%json`` for `node`."""
        document = self.lowered.document(node)
        if isinstance(document, bool):
            document = {} if document else {"anyOf": []}
        options = _options(self.constraint.whitespace, self.lowered.unicode_escapes)
        text = json.dumps({**document, "x-guidance": options}, ensure_ascii=False)
        check_text_depth(text)
        return text

    def otherwise(self, refusal: EngineRefusal) -> JSONGrammar | None:
        if refusal.kind == "unsatisfiable" and (found := _DEFINITION.search(refusal.message)):
            # The engine gives up on a definition without a text, even where nothing requires it.
            if found[1] in self.lowered.definitions:
                bar_definitions(self.lowered, {found[1]})
                return self
        if refusal.kind == "unsupported" and self.lowered.unicode_escapes:
            return self.of(self.constraint, unicode_escapes=False)
        return None

    def blame(self, refusal: EngineRefusal, probe: Probe) -> ConstraintError:
        def is_refused(node: Schema) -> bool:
            found = probe(self._lark(node))
            return found is not None and found.kind == refusal.kind

        if refusal.kind == "unsatisfiable":
            path = blamed_path(self.lowered, lambda node: node is False or is_refused(node))
            return UnsatisfiableConstraint(show_path(path))
        path, keyword = self._smallest(is_refused, refusal.message)
        if refusal.kind == "budget":
            return CompileBudgetExceeded(keyword, f"{show_path(path)}: {refusal.message}")
        message = _ENGINE_OPTION.sub("", refusal.message)
        return UnsupportedConstraint(show_path(path), keyword, f"can't be enforced here: {message}")

    def _smallest(self, is_refused: Callable[[Schema], bool], message: str) -> tuple[Path, str]:
        """The deepest schema that is refused on its own, and the keyword of it without which it isn't.

        Those with a keyword that the engine's `message` names come first, since not all can be tried.
        """

        def order(entry: tuple[Path, dict[str, Any]]) -> tuple[bool, int]:
            path, node = entry
            return not any(keyword in message for keyword in node if len(keyword) > 4), -len(path)

        nodes = sorted(self.lowered.paths, key=order)
        for path, node in nodes[:_MAX_PROBES]:
            if is_refused(node):
                without = ((name, {key: value for key, value in node.items() if key != name}) for name in node)
                return path, next((name for name, rest in without if not is_refused(rest)), next(iter(node)))
        return (), "schema"


def _refuse_unbuilt(constraint: JSONSchema) -> None:
    if constraint.property_order != "schema":
        raise UnsupportedConstraint("$", "property_order", "is not supported yet other than as 'schema'")
    if constraint.numbers != "canonical":
        raise UnsupportedConstraint("$", "numbers", "is not supported yet other than as 'canonical'")
    if constraint.resources:
        raise UnsupportedConstraint("$", "resources", "is not supported yet")


def _whitespace(count: int) -> str:
    return rf"[\x20\x0A\x0D\x09]{{1,{count}}}"


def _options(whitespace: str | int, unicode_escapes: bool) -> dict[str, Any]:
    spaced = whitespace == "spaced"
    options: dict[str, Any] = {
        "item_separator": ", " if spaced else ",",
        "key_separator": ": " if spaced else ":",
        "whitespace_flexible": False,
        "json_allow_general_unicode_escapes": unicode_escapes,
    }
    if not unicode_escapes:
        options["json_allowed_escapes"] = 'nrbtf\\"'
    if isinstance(whitespace, int) and whitespace > 0:
        options["whitespace_pattern"] = _whitespace(whitespace)
    return options
