"""Schemas lowered for the engine: whitespace, keys, references, drafts, what is refused and where."""

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest

from drawloom.errors import InvalidConstraint, UnsatisfiableConstraint, UnsupportedConstraint
from drawloom.grammar import CompiledGrammar, Constraint, JSONSchema

Compile = Callable[[Constraint], CompiledGrammar]

INT: dict[str, Any] = {"type": "integer"}
STR: dict[str, Any] = {"type": "string"}
DRAFT = "http://json-schema.org/draft-0{}/schema#"


def accepted(compiled: CompiledGrammar, *texts: str) -> list[str]:
    return [text for text in texts if compiled.accepts(text)]


# Whitespace

VALUES: list[Any] = [
    {},
    [],
    {"a": 1},
    {"a": 1, "b": [1, 2]},
    {"a": {"b": {}, "c": []}, "x": [[], [{"y": None}]]},
    [True, "a, b: c", {"k": "v"}],
]


def test_spaced_is_what_json_dumps_writes_and_nothing_else(compile_: Compile) -> None:
    for value in VALUES:
        for schema in ({}, {"const": value}, {"type": ["object", "array"], "additionalProperties": True}):
            spaced = compile_(JSONSchema(schema))
            assert spaced.accepts(json.dumps(value)), (schema, value)
            for text in (
                json.dumps(value, separators=(",", ":")),
                json.dumps(value, indent=1),
                json.dumps(value) + " ",
            ):
                if text != json.dumps(value):
                    assert not spaced.accepts(text), (schema, text)


def test_compact_is_no_whitespace_at_all(compile_: Compile) -> None:
    for value, option in itertools.product(VALUES, ("compact", 0)):
        compiled = compile_(JSONSchema({}, whitespace=option))  # type: ignore[arg-type]
        text = json.dumps(value, separators=(",", ":"))
        assert compiled.accepts(text)
        assert text == json.dumps(value) or not compiled.accepts(json.dumps(value))


def test_a_count_of_whitespace_holds_in_every_gap(compile_: Compile) -> None:
    tokens = ["{", '"a"', ":", "[", "1", ",", "2", "]", ",", '"b"', ":", "{", "}", "}"]
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": INT}, "b": {"type": "object"}}}
    compiled = compile_(JSONSchema(schema, whitespace=2))
    assert compiled.accepts("".join(tokens)) and compiled.accepts(" \n".join(tokens))
    for gap in range(len(tokens) + 1):
        for blanks in (" ", "\t\r", "\n "):
            assert compiled.accepts("".join(tokens[:gap]) + blanks + "".join(tokens[gap:])), gap
        for blanks in ("   ", "\n\n\n", "\x0b", "\u00a0"):
            assert not compiled.accepts("".join(tokens[:gap]) + blanks + "".join(tokens[gap:])), gap


# Strings and keys


def test_the_escapes_of_strings(compile_: Compile) -> None:
    for schema in (STR, {"type": "string", "maxLength": 4}, {}):
        compiled = compile_(JSONSchema(schema))
        legal = [r'"\u0041\u00e9"', r'"\ud83d\ude00"', r'"\"\\\n\r"', r'"\t\b\f"', r'"\u0000\u001f"', '"é日😀"', '""']
        assert accepted(compiled, *legal) == legal
        broken = [r'"\u004"', r'"\x41"', r'"\u00g0"', '"\n"', '"a', r'"\"', "'a'", '"a"b"', r'"\U0041"', r'"\ud83d"']
        assert accepted(compiled, *broken) == []
    # Legal, but not offered by the engine: the two escapes without need, and the bare DEL.
    assert accepted(compile_(JSONSchema(STR)), r'"\/"', '"\x7f"') == []


def test_lengths_count_characters_after_escapes(compile_: Compile) -> None:
    compiled = compile_(JSONSchema({"type": "string", "minLength": 2, "maxLength": 3}))
    for text in ("ab", "abc", "é日", "\n\n", '"\\', "😀😀😀"):
        assert compiled.accepts(json.dumps(text)) and compiled.accepts(json.dumps(text, ensure_ascii=False))
    for text in ("a", "abcd", "é", "\n", "😀" * 4, ""):
        assert not compiled.accepts(json.dumps(text)) and not compiled.accepts(json.dumps(text, ensure_ascii=False))


OPEN = {"type": "object", "properties": {"ab": INT, "c": STR}}
KEY_CASES: list[tuple[dict[str, Any], list[str], list[str]]] = [
    (
        OPEN,
        ['{"ab": 1}', '{"c": "x", "d": [1]}', '{"ac": 1, "": 2, "\\n": 3}', "{}"],
        [
            r'{"\u0061b": "x"}',
            r'{"ab": 1, "\u0061\u0062": "x"}',
            '{"ab": "x"}',
            '{"ab": 1, "ab": 1}',
            '{"d": 1, "c": "x"}',
        ],
    ),
    (
        {**OPEN, "additionalProperties": {"type": "boolean"}},
        ['{"ab": 1, "c": "x", "d": true}', '{"a": true, "abc": false, "b": true}'],
        ['{"d": 1}', r'{"\u0061b": true}', '{"ab": true}', '{"abc": 1}'],
    ),
    (
        {**OPEN, "additionalProperties": False, "required": ["c"]},
        ['{"c": "x"}', '{"ab": 1, "c": "x"}'],
        ['{"ab": 1}', "{}", '{"c": "x", "d": 1}', r'{"\u0063": "x"}'],
    ),
    (
        {**OPEN, "patternProperties": {"^a": INT}},
        ['{"ab": 1, "ac": 2, "d": "x"}'],
        ['{"ac": "x"}', r'{"\u0061c": "x"}', '{"ab": "x"}'],
    ),
    (
        {"properties": {"a\nb": INT}, "type": "object"},
        ['{"a\\nb": 1, "a": "x"}'],
        ['{"a\\nb": "x"}', r'{"a\u000ab": "x"}', r'{"\u0061\nb": "x"}'],
    ),
    (
        {"allOf": [{"properties": {"a": INT}}, {"properties": {"b": STR}, "required": ["b"]}], "type": "object"},
        ['{"a": 1, "b": "x", "c": 1}', '{"b": "x"}'],
        ['{"a": 1}', r'{"b": "x", "\u0061": "x"}', '{"a": "x", "b": "x"}'],
    ),
    (
        {"type": "object", "properties": {"a": INT}, "allOf": [{"additionalProperties": STR, "properties": {"a": {}}}]},
        ['{"a": 1, "b": "x"}'],
        ['{"a": 1, "b": 1}', '{"a": "x"}', r'{"\u0061": "x"}'],
    ),
    (
        {
            "additionalProperties": False,
            "allOf": [{"required": ["ac"]}],
            "patternProperties": {"^a": INT},
            "type": "object",
        },
        ['{"ac": 1}', '{"ac": 1, "ab": 1}'],
        ['{"ab": 1}', '{"ac": 1, "b": 1}'],
    ),
    (
        {"type": "object", "required": ["a"], "minProperties": 2, "additionalProperties": INT},
        ['{"a": 1, "b": 2}'],
        ['{"a": 1}', r'{"a": 1, "\u0061": 2}', '{"b": 1, "c": 2}'],
    ),
    (
        {"type": "object", "properties": {'a"b': STR, "C:\\": STR}, "additionalProperties": INT},
        [r'{"a\"b": "x", "C:\\": "y", "d": 1}'],
        [r'{"a\"b": 5}', r'{"C:\\": 5}', r'{"a\"b": "x", "a\"b": 5}', r'{"a\u0022b": 5}', r'{"\u0061\"b": 5}'],
    ),
]


@pytest.mark.parametrize("index", range(len(KEY_CASES)))
def test_keys_are_told_apart_however_they_are_spelled(index: int, compile_: Compile) -> None:
    schema, valid, invalid = KEY_CASES[index]
    compiled = compile_(JSONSchema(schema))
    assert accepted(compiled, *valid, *invalid) == valid


def test_properties_come_in_the_order_of_the_schema(compile_: Compile) -> None:
    first = compile_(JSONSchema({"type": "object", "properties": {"a": INT, "b": INT}, "required": ["a", "b"]}))
    other = compile_(JSONSchema({"type": "object", "properties": {"b": INT, "a": INT}, "required": ["a", "b"]}))
    assert first.accepts('{"a": 1, "b": 2}') and not first.accepts('{"b": 2, "a": 1}')
    assert other.accepts('{"b": 2, "a": 1}') and not other.accepts('{"a": 1, "b": 2}')


# Numbers


def test_numbers(compile_: Compile) -> None:
    integer, number = compile_(JSONSchema(INT)), compile_(JSONSchema({"type": "number"}))
    for text in ("0", "-0", "12", "-7", "123456789012345678901234567890"):
        assert integer.accepts(text) and number.accepts(text)
    for text in ("1.5", "-0.25", "1e5", "1E-7", "2.5e+10"):
        assert number.accepts(text) and not integer.accepts(text)
    for text in ("01", "+1", ".5", "1.", "1e", "--1", "0x1", "NaN", "Infinity", "", "-"):
        assert not number.accepts(text) and not integer.accepts(text)
    assert not integer.accepts("1.0"), "canonical: an integer has no fraction"


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"const": 2**53 + 1}, "const"),
        ({"enum": [1, [{"a": -(2**60)}]]}, "enum"),
        ({"type": "integer", "minimum": 2**53 + 1}, "minimum"),
        ({"type": "number", "exclusiveMaximum": 1e300}, "exclusiveMaximum"),
        ({"type": "integer", "multipleOf": 999_983}, "multipleOf"),
        ({"allOf": [{"multipleOf": 4093}, {"multipleOf": 4091}, {"multipleOf": 4079}]}, "multipleOf"),
    ],
)
def test_numbers_that_the_engine_would_round_are_refused(schema: Any, keyword: str, compile_: Compile) -> None:
    with pytest.raises(UnsupportedConstraint) as refused:
        compile_(JSONSchema(schema))
    assert refused.value.keyword == keyword


# References


def test_references(compile_: Compile) -> None:
    schema = {
        "$id": "https://example.com/root.json",
        "type": "array",
        "prefixItems": [
            {"$ref": "#/$defs/a~1b%25"},
            {"$ref": "#int"},
            {"$ref": "inner.json"},
            {"$ref": "inner.json#/$defs/x"},
            {"$ref": "#/x-parts/0"},
        ],
        "items": False,
        "x-parts": [{"const": "part"}],
        "$defs": {
            "a/b%": STR,
            "number": {"$anchor": "int", "type": "integer"},
            "inner": {"$id": "inner.json", "$ref": "#/$defs/x", "$defs": {"x": {"type": "boolean"}}},
        },
    }
    compiled = compile_(JSONSchema(schema))
    assert compiled.accepts('["s", 1, true, false, "part"]')
    for text in ('[1, 1, true, false, "part"]', '["s", "s", true]', '["s", 1, 2]', '["s", 1, true, 1]'):
        assert not compiled.accepts(text)


def test_recursion_and_what_never_ends(compile_: Compile) -> None:
    tree = {"type": "object", "properties": {"v": INT, "c": {"type": "array", "items": {"$ref": "#"}}}}
    compiled = compile_(JSONSchema({**tree, "additionalProperties": False}))
    text = '{"v": 1}'
    for _ in range(50):
        text = '{"v": 1, "c": [' + text + "]}"
    assert compiled.accepts(text)
    for endless in ({"$ref": "#"}, {"type": "object", "properties": {"c": {"$ref": "#"}}, "required": ["c"]}):
        with pytest.raises(UnsatisfiableConstraint):
            compile_(JSONSchema(endless))
    never = {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "required": ["n"]}
    optional = {"type": "object", "properties": {"a": INT, "n": {"$ref": "#/$defs/n"}}, "additionalProperties": False}
    compiled = compile_(JSONSchema({**optional, "$defs": {"n": never}}))
    assert accepted(compiled, '{"a": 1}', "{}") == ['{"a": 1}', "{}"]
    matcher = compiled.matcher()
    assert matcher.validate_drafts(list(b'{"n"')) == 2, "an optional property without a text is never begun"


def test_unsatisfiable_parts_hurt_only_where_they_are_required(compile_: Compile) -> None:
    nothing = {"type": "object", "oneOf": [{"enum": ["a"]}, {"type": "string"}]}
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}, "b": INT}, "$defs": {"n": nothing}}
    assert accepted(compile_(JSONSchema(schema)), '{"b": 1}', '{"a": "a"}') == ['{"b": 1}']
    with pytest.raises(UnsatisfiableConstraint) as refused:
        compile_(JSONSchema({**schema, "required": ["a"]}))
    assert refused.value.path in ("$.properties.a", "$.$defs.n")


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        (False, "$"),
        ({"allOf": [{}, False]}, "$.allOf[1]"),
        ({"type": "array", "minItems": 2, "items": {"enum": []}}, "$.items"),
        ({"type": "string", "pattern": "^a$", "minLength": 2}, "$"),
        ({"type": "integer", "minimum": 1.2, "maximum": 1.8}, "$"),
    ],
)
def test_where_nothing_fits(schema: Any, path: str, compile_: Compile) -> None:
    with pytest.raises(UnsatisfiableConstraint) as refused:
        compile_(JSONSchema(schema))
    assert refused.value.path == path
    deep = {"type": "object", "properties": {"x": {"type": "array", "minItems": 1, "items": schema}}, "required": ["x"]}
    with pytest.raises(UnsatisfiableConstraint) as refused:
        compile_(JSONSchema(deep))
    assert refused.value.path == "$.properties.x.items" + path[1:]


# Drafts


def test_older_drafts(compile_: Compile) -> None:
    four = {
        "$schema": DRAFT.format(4),
        "id": "http://example.com/x",
        "type": "array",
        "items": [{"type": "number", "minimum": 0, "exclusiveMinimum": True}, {"$ref": "#/definitions/s"}],
        "additionalItems": INT,
        "definitions": {"s": {"type": "string", "minimum": 3, "exclusiveMaximum": False, "maximum": 1}},
    }
    compiled = compile_(JSONSchema(four))
    assert accepted(compiled, '[0.5, "s", 1]', "[1]", "[0]", '[1, "s", "t"]', "[1, 2]") == ['[0.5, "s", 1]', "[1]"]
    seven = compile_(JSONSchema({"$schema": DRAFT.format(7), "items": INT, "additionalItems": False, "type": "array"}))
    assert seven.accepts("[1, 2]") and "without effect" in seven.report["$.additionalItems"]
    siblings = {"$schema": DRAFT.format(7), "properties": {"a": {"$ref": "#/definitions/a", "maxLength": 1}}}
    compiled = compile_(JSONSchema({**siblings, "definitions": {"a": STR}, "type": "object"}))
    assert not compiled.accepts('{"a": "xy"}') and "siblings" in compiled.report["$.properties.a.$ref"]


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"$schema": DRAFT.format(4), "const": 1}, "const"),
        ({"$schema": DRAFT.format(7), "prefixItems": []}, "prefixItems"),
        ({"additionalItems": False}, "additionalItems"),
        ({"dependencies": {}}, "dependencies"),
        ({"$schema": "http://example.com/mine"}, "$schema"),
        ({"$schema": "http://json-schema.org/draft-03/schema#"}, "$schema"),
        ({"properties": {"a": {"$schema": DRAFT.format(4)}}}, "$schema"),
    ],
)
def test_keywords_of_other_drafts_are_refused(schema: Any, keyword: str, compile_: Compile) -> None:
    with pytest.raises(UnsupportedConstraint) as refused:
        compile_(JSONSchema(schema))
    assert refused.value.keyword == keyword


# Malformed


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"type": "strng"}, "$.type"),
        ({"properties": {"a b": {"type": ["string", "string"]}}}, "$.properties['a b'].type"),
        ({"items": {"minLength": -1}}, "$.items.minLength"),
        ({"anyOf": [{}, {"required": "a"}]}, "$.anyOf[1].required"),
        ({"anyOf": []}, "$.anyOf"),
        ({"multipleOf": 0}, "$.multipleOf"),
        ({"pattern": "(["}, "$.pattern: position 1"),
        ({"patternProperties": {"a{2,1}": {}}}, "$.patternProperties['a{2,1}']: position 1"),
        ({"$ref": "#/$defs/x"}, "$.$ref"),
        ({"$ref": "#nowhere"}, "$.$ref"),
        ({"$ref": "#/x-parts", "x-parts": {"type": 5}}, "$['x-parts'].type"),
        ({"$ref": "#/x-parts", "x-parts": [1]}, "$['x-parts']"),
        ({"items": [{}]}, "$.items"),
        ({"$schema": 5}, "$.$schema"),
        ({"$schema": DRAFT.format(4), "not": True}, "$.not"),
    ],
)
def test_malformed_schemas_say_where(schema: Any, place: str, compile_: Compile) -> None:
    with pytest.raises(InvalidConstraint) as refused:
        compile_(JSONSchema(schema))
    assert refused.value.place == place


@pytest.mark.parametrize(
    "schema",
    [None, 1, [], "null", "[1]", "{", '{"type": "string", "type": "null"}', '{"minimum": NaN}', b"\xff", {1: 2}],
)
def test_what_is_no_schema(schema: object) -> None:
    with pytest.raises(InvalidConstraint):
        JSONSchema(schema)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1, 2}, b"x", "\ud800", {None: 1}])
def test_what_is_no_json(value: object) -> None:
    with pytest.raises(InvalidConstraint) as refused:
        JSONSchema({"properties": {"a": {"default": [value]}}})
    assert refused.value.place.startswith("$.properties.a.default[0]")


@pytest.mark.parametrize(
    "options",
    [
        {"whitespace": "tabs"},
        {"whitespace": -1},
        {"whitespace": True},
        {"whitespace": None},
        {"whitespace": 1.0},
        {"property_order": "sorted"},
        {"numbers": None},
        {"formats": "ignore"},
        {"resources": []},
        {"resources": {1: {}}},
        {"resources": {"a": {1, 2}}},
    ],
)
def test_options_out_of_their_domain(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidConstraint) as refused:
        JSONSchema({}, **options)
    assert refused.value.place.startswith(next(iter(options)))


def test_constraints_are_values() -> None:
    one = JSONSchema({"properties": {"a": INT, "b": STR}})
    same = JSONSchema('{"properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}')
    other = JSONSchema({"properties": {"b": STR, "a": INT}})
    assert one == same and hash(one) == hash(same) and one != other
    assert one != JSONSchema({"properties": {"a": INT, "b": STR}}, whitespace="compact")
    schema: dict[str, Any] = {"type": "string"}
    made = JSONSchema(schema)
    schema["type"] = "null"
    assert made == JSONSchema(STR), "a schema that its owner changes later is not affected"
    with pytest.raises(AttributeError):
        made.text = "{}"  # type: ignore[misc]
