"""The grammar of JSON texts under a schema, and the place in the schema at which an engine's refusal points."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..errors import CompileBudgetExceeded, ConstraintError, UnsatisfiableConstraint, UnsupportedConstraint
from .constraint import JSONSchema
from .engine import EngineRefusal
from .finite_schema import bar_endless, blamed_path
from .json_path import show_path
from .json_schema import LoweredSchema, NeedsPlainEscapes, Schema, lower_schema

__all__ = ["json_grammars", "schema_literal"]

Probe = Callable[[str], EngineRefusal | None]
Blame = Callable[[EngineRefusal, Probe], ConstraintError]

_MAX_DEPTH = 110  # of the lowered document; the engine's JSON reader stops at 128
_MAX_PROBES = 200

# How the engine's messages name the keyword that it refuses.
_KEYWORDS = (
    (r"oneOf", "oneOf"),
    (r"circular references", "$ref"),
    (r"min/maxProperties", "minProperties"),
    (r"patternProperty|disjoint", "patternProperties"),
    (r"float range|integer range", "minimum"),
    (r"regex|lookaround|Regex", "pattern"),
    (r"MultipleOf|multiple", "multipleOf"),
)


def json_grammars(constraint: JSONSchema) -> Iterator[tuple[str, Mapping[str, str], Blame]]:
    """Grammar, report and blame for each way to say the schema."""
    _refuse_unbuilt(constraint)
    for unicode_escapes in (True, False):
        try:
            lowered = lower_schema(constraint.text, formats=constraint.formats, unicode_escapes=unicode_escapes)
        except NeedsPlainEscapes:
            continue
        if not bar_endless(lowered):
            raise UnsatisfiableConstraint(show_path(_endless_path(lowered)), "only an endless text could satisfy this")
        if not unicode_escapes:
            lowered.report["$"] = "strings take no \\u escapes: the keys of an object couldn't be told apart otherwise"
        yield _grammar(lowered, lowered.root, constraint.whitespace), lowered.report, _Blame(lowered, constraint)


def _refuse_unbuilt(constraint: JSONSchema) -> None:
    if constraint.property_order != "schema":
        raise UnsupportedConstraint("$", "property_order", "is not supported yet other than as 'schema'")
    if constraint.numbers != "canonical":
        raise UnsupportedConstraint("$", "numbers", "is not supported yet other than as 'canonical'")
    if constraint.resources:
        raise UnsupportedConstraint("$", "resources", "is not supported yet")


def _endless_path(lowered: LoweredSchema) -> tuple[str | int, ...]:
    return blamed_path(lowered, lambda node: node is False)


def _grammar(lowered: LoweredSchema, node: Schema, whitespace: str | int) -> str:
    literal = schema_literal(lowered, node, whitespace)
    if isinstance(whitespace, int) and whitespace:
        return f"start: WS? value WS?\nvalue: %json {literal}\nWS: /{_whitespace(whitespace)}/"
    return f"start: %json {literal}"


def _whitespace(count: int) -> str:
    return rf"[\x20\x0A\x0D\x09]{{1,{count}}}"


def schema_literal(lowered: LoweredSchema, node: Schema | None, whitespace: str | int) -> str:
    """The JSON that stands behind ``%json``."""
    document = lowered.document(node)
    if isinstance(document, bool):
        document = {} if document else {"anyOf": []}
    spaced = whitespace == "spaced"
    options: dict[str, Any] = {
        "item_separator": ", " if spaced else ",",
        "key_separator": ": " if spaced else ":",
        "whitespace_flexible": False,
        "json_allow_general_unicode_escapes": lowered.unicode_escapes,
    }
    if not lowered.unicode_escapes:
        options["json_allowed_escapes"] = 'nrbtf\\"'
    if isinstance(whitespace, int) and whitespace:
        options["whitespace_pattern"] = _whitespace(whitespace)
    literal = json.dumps({**document, "x-guidance": options}, ensure_ascii=False)
    if _depth(literal) > _MAX_DEPTH:
        raise CompileBudgetExceeded("nesting", f"the lowered schema nests deeper than {_MAX_DEPTH} levels")
    return literal


def _depth(text: str) -> int:
    depth = deepest = 0
    for bracket in re.findall(r'"(?:[^"\\]|\\.)*"|([\[{\]}])', text):
        depth += 1 if bracket in ("[", "{") else -1 if bracket else 0
        deepest = max(deepest, depth)
    return deepest


class _Blame:
    def __init__(self, lowered: LoweredSchema, constraint: JSONSchema) -> None:
        self.lowered = lowered
        self.whitespace = constraint.whitespace

    def __call__(self, refusal: EngineRefusal, probe: Probe) -> ConstraintError:
        def is_refused(node: Schema) -> bool:
            found = probe(_grammar(self.lowered, node, self.whitespace))
            return found is not None and found.kind == refusal.kind

        if refusal.kind == "unsatisfiable":
            return UnsatisfiableConstraint(show_path(blamed_path(self.lowered, is_refused)))
        keyword = next((name for pattern, name in _KEYWORDS if re.search(pattern, refusal.message)), "schema")
        path = self._deepest(keyword, is_refused)
        if refusal.kind == "budget":
            return CompileBudgetExceeded(keyword, f"{show_path(path)}: {refusal.message}")
        return UnsupportedConstraint(show_path(path), keyword, f"can't be enforced here: {refusal.message}")

    def _deepest(self, keyword: str, is_refused: Callable[[Schema], bool]) -> tuple[str | int, ...]:
        """The smallest schema with `keyword` that the engine refuses on its own."""
        with_keyword = [(path, node) for path, node in self.lowered.paths if keyword in node]
        with_keyword.sort(key=lambda entry: -len(entry[0]))
        if len(with_keyword) == 1:
            return with_keyword[0][0]
        return next((path for path, node in with_keyword[:_MAX_PROBES] if is_refused(node)), ())
