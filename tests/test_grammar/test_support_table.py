"""The declared table of keywords, held against the installed engine."""

import json
from collections.abc import Callable
from typing import Any

import jsonschema_rs
import pytest

from drawloom.errors import UnsupportedConstraint
from drawloom.grammar import CompiledGrammar, Constraint, JSONSchema
from drawloom.grammar.support import KEYWORDS, Draft, Treatment, classify_unknown

Compile = Callable[[Constraint], CompiledGrammar]

SEVEN = "http://json-schema.org/draft-07/schema#"
ANY_OBJECT = {"type": "object"}

# For each enforced keyword: a schema, values that satisfy it, values that don't.
INSTANCES: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {
    "type": ({"type": ["integer", "null"]}, [1, None], ["1", 1.5, True, {}, []]),
    "enum": (
        {"enum": ["a", 1, None, [1], {"k": True}]},
        ["a", 1, None, [1], {"k": True}],
        ["b", 2, [], {"k": 1}, True],
    ),
    "const": ({"const": {"a": [1, "x"]}}, [{"a": [1, "x"]}], [{}, {"a": [1]}, {"a": [1, "x"], "b": 1}]),
    "allOf": ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, [3], [2, "x"]),
    "anyOf": ({"anyOf": [{"type": "integer"}, {"maxLength": 1, "type": "string"}]}, [3, "x"], ["xy", None]),
    "oneOf": ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, [3, "x"], [None, 1.5]),
    "$ref": ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "null"}}}, [None], [1]),
    "properties": ({**ANY_OBJECT, "properties": {"a": {"type": "null"}}}, [{}, {"a": None}, {"b": 1}], [{"a": 1}]),
    "required": ({**ANY_OBJECT, "required": ["a", "b"]}, [{"a": 1, "b": 2}], [{}, {"a": 1}, {"b": 2}]),
    "additionalProperties": (
        {**ANY_OBJECT, "properties": {"a": {}}, "additionalProperties": {"type": "null"}},
        [{"a": 1}, {"a": 1, "b": None}],
        [{"b": 1}, {"a": 1, "b": 2}],
    ),
    "patternProperties": (
        {**ANY_OBJECT, "patternProperties": {"^x": {"type": "null"}}, "additionalProperties": False},
        [{}, {"x": None}, {"x1": None}],
        [{"x": 1}, {"a": None}],
    ),
    "minProperties": ({**ANY_OBJECT, "minProperties": 1}, [{"a": 1}, {"a": 1, "b": 2}], [{}]),
    "maxProperties": ({**ANY_OBJECT, "maxProperties": 1}, [{}, {"a": 1}], [{"a": 1, "b": 2}]),
    "items": ({"type": "array", "items": {"type": "null"}}, [[], [None, None]], [[1], [None, 1]]),
    "prefixItems": ({"type": "array", "prefixItems": [{"type": "null"}]}, [[], [None], [None, 1]], [[1]]),
    "additionalItems": (
        {"$schema": SEVEN, "type": "array", "items": [{}], "additionalItems": {"type": "null"}},
        [[], [1], [1, None]],
        [[1, 1]],
    ),
    "minItems": ({"type": "array", "minItems": 2}, [[1, 2], [1, 2, 3]], [[], [1]]),
    "maxItems": ({"type": "array", "maxItems": 2.0}, [[], [1, 2]], [[1, 2, 3]]),
    "minLength": ({"type": "string", "minLength": 2}, ["ab", "é日"], ["a", ""]),
    "maxLength": ({"type": "string", "maxLength": 2}, ["", "é日"], ["abc"]),
    "pattern": ({"type": "string", "pattern": "^a+$"}, ["a", "aa"], ["", "ab"]),
    "format": ({"type": "string", "format": "date"}, ["2024-02-29"], ["2023-02-29", "x"]),
    "minimum": ({"type": "integer", "minimum": -3}, [-3, 0, 100], [-4]),
    "maximum": ({"type": "number", "maximum": 2.5}, [2.5, -1, 0], [2.6, 3]),
    "exclusiveMinimum": ({"type": "number", "exclusiveMinimum": 2.5}, [2.6, 3], [2.5, 2]),
    "exclusiveMaximum": ({"type": "integer", "exclusiveMaximum": 3}, [2, -7], [3, 4]),
    "multipleOf": ({"type": "integer", "multipleOf": 3}, [0, 3, -6], [1, 4]),
}
ENFORCED = [name for name, keyword in KEYWORDS.items() if keyword.treatment is Treatment.ENFORCED]
UNTYPED_MEANS_ALL_TYPES: list[Any] = [None, True, 0, "zz", [], {}]


def test_every_enforced_keyword_has_instances() -> None:
    assert set(INSTANCES) == set(ENFORCED)


@pytest.mark.parametrize("keyword", ENFORCED)
def test_the_engine_enforces_the_keyword(keyword: str, compile_: Compile) -> None:
    schema, valid, invalid = INSTANCES[keyword]
    truth = jsonschema_rs.validator_for(schema, validate_formats=True)
    compiled = compile_(JSONSchema(schema))
    assert compiled.engine == "llguidance"
    assert compiled.report[f"$.{keyword}"].startswith("enforced")
    for value in valid:
        assert truth.is_valid(value) and compiled.accepts(json.dumps(value)), value
    for value in invalid:
        assert not truth.is_valid(value) and not compiled.accepts(json.dumps(value)), value


@pytest.mark.parametrize("keyword", [name for name in ENFORCED if name not in ("type", "additionalItems")])
def test_an_assertion_binds_its_own_type_alone(keyword: str, compile_: Compile) -> None:
    schema = {name: value for name, value in INSTANCES[keyword][0].items() if name != "type"}
    truth = jsonschema_rs.validator_for(schema, validate_formats=True)
    compiled = compile_(JSONSchema(schema))
    for value in UNTYPED_MEANS_ALL_TYPES:
        assert compiled.accepts(json.dumps(value)) == truth.is_valid(value), value


UNSUPPORTED: dict[str, dict[str, Any]] = {
    "not": {"not": {"type": "null"}},
    "uniqueItems": {"uniqueItems": True},
    "dependencies": {"$schema": SEVEN, "dependencies": {"a": ["b"]}},
    "contains": {"contains": {}},
    "propertyNames": {"propertyNames": {"maxLength": 3}},
    "if": {"if": {}, "then": {}},
    "then": {"if": {}, "then": {}},
    "else": {"if": {}, "else": {}},
    "dependentRequired": {"dependentRequired": {"a": ["b"]}},
    "dependentSchemas": {"dependentSchemas": {"a": {}}},
    "minContains": {"contains": {}, "minContains": 2},
    "maxContains": {"contains": {}, "maxContains": 2},
    "unevaluatedItems": {"unevaluatedItems": False},
    "unevaluatedProperties": {"unevaluatedProperties": False},
    "$recursiveRef": {"$schema": Draft.DRAFT2019.uri, "$recursiveRef": "#"},
    "$dynamicRef": {"$dynamicRef": "#a", "$dynamicAnchor": "a"},
}


def test_every_unsupported_keyword_has_a_schema() -> None:
    assert set(UNSUPPORTED) == {name for name, known in KEYWORDS.items() if known.treatment is Treatment.UNSUPPORTED}


@pytest.mark.parametrize("keyword", UNSUPPORTED)
def test_unsupported_keywords_are_refused_with_their_path(keyword: str, compile_: Compile) -> None:
    schema = UNSUPPORTED[keyword]
    root = {"$schema": schema.get("$schema", Draft.DRAFT2020.uri)}
    part = {name: value for name, value in schema.items() if name != "$schema"}
    with pytest.raises(UnsupportedConstraint) as refused:
        compile_(JSONSchema({**root, "properties": {"x": {"items": part}}}))
    assert refused.value.path == "$.properties.x.items" and refused.value.keyword in part


@pytest.mark.parametrize(
    "schema", [{"uniqueItems": False}, {"then": False}, {"else": False}, {"if": False}, {"minContains": 3}]
)
def test_what_has_no_effect_is_reported_as_such(schema: dict[str, Any], compile_: Compile) -> None:
    compiled = compile_(JSONSchema(schema))
    assert compiled.accepts("[1, 1]") and list(compiled.report.values()) == ["without effect here"]


def test_annotations_are_reported(compile_: Compile) -> None:
    schema = {
        "$schema": Draft.DRAFT2020.uri,
        "$comment": "c",
        "title": "t",
        "description": "d",
        "default": {"$ref": "nowhere", "type": "strng"},
        "examples": [1],
        "deprecated": True,
        "readOnly": True,
        "writeOnly": False,
        "contentMediaType": "text/plain",
        "contentEncoding": "base64",
        "contentSchema": {"not": {}},
        "x-vendor": {"not": {}},
        "discriminator": {"propertyName": "kind"},
        "markdownDescription": "**d**",
        "format": "regex",
    }
    compiled = compile_(JSONSchema(schema))
    assert compiled.accepts('"("') and compiled.accepts("1")
    report = dict(compiled.report)
    assert report.pop("$.$schema") == "names a part of the schema"
    assert set(report.values()) == {"annotation"} and len(report) == len(schema) - 1
    assert "$['x-vendor']" in report and "$.contentMediaType" in report


@pytest.mark.parametrize(
    "name",
    """maxlen minlen length regex values choices allowed optional props
    x-guidance nullable divisibleBy disallow extends minValue maxvalue instanceof range minLenght minlength MaxItems
    item enums requred required_ additonalProperties additinalProperties propertys patern anyof one_of Const ref @ref
    $Ref formatMinimum uniqueItem prohibited types exclusiveMinimun""".split(),
)
def test_what_reads_like_an_assertion_is_refused(name: str, compile_: Compile) -> None:
    assert classify_unknown(name) is Treatment.UNSUPPORTED
    with pytest.raises(UnsupportedConstraint) as refused:
        compile_(JSONSchema({"type": "object", "properties": {"a": {"type": "string", name: 3}}}))
    assert (refused.value.path, refused.value.keyword) == ("$.properties.a", name)


@pytest.mark.parametrize(
    "name",
    """x-anything _format $$target example xml externalDocs self vendor name comment category propertyOrder tsType
    enumNames errorMessage javaType options links version foo""".split(),
)
def test_other_unknown_keywords_are_annotations(name: str, compile_: Compile) -> None:
    compiled = compile_(JSONSchema({"type": "string", name: {"not": {}}}))
    assert compiled.accepts('"x"') and sorted(compiled.report.values()) == ["annotation", "enforced"]
