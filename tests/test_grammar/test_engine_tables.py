"""What each engine is declared to enforce, held against the engine; all else is refused by name."""

import json
from collections.abc import Callable
from typing import Any

import jsonschema_rs
import numpy as np
import pytest

from drawloom.errors import UnsatisfiableConstraint, UnsupportedConstraint
from drawloom.grammar import EBNF, Choice, Constraint, GrammarCompiler, JSONSchema, Regex, Vocabulary
from drawloom.grammar.support import ENGINES, KEYWORDS, Treatment

REGULAR = ("xgrammar", "outlines-core")
TOKENS = [bytes([value]) for value in range(256)] + [b"", b"aaaaaaaa", b"}]", b'": ', b"/a", b"\xe6\x9d", b"-0."]
BYTES = Vocabulary(TOKENS, eos_ids=[256])
COMPILERS = {engine: GrammarCompiler(BYTES, engines=engine) for engine in ENGINES}

CLOSED = {"type": "object", "additionalProperties": False}
# For each keyword of the table: a schema, values that satisfy it, values that don't.
INSTANCES: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {
    "type": ({"type": ["integer", "null"]}, [1, -20, None], ["1", 1.5, True, {}, []]),
    "const": ({"const": {"a": [1, "x\n"]}}, [{"a": [1, "x\n"]}], [{}, {"a": [1]}, None]),
    "enum": ({"type": "string", "enum": ["a", 1, "b"]}, ["a", "b"], [1, "c", None]),
    "anyOf": ({"anyOf": [{"type": "integer"}, {"enum": ["x"]}]}, [3, "x"], ["xy", None, 1.5]),
    "$ref": ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "null"}}}, [None], [1, ""]),
    "minLength": ({"type": "string", "minLength": 1}, ["a", "é日", "\n"], ["", None]),
    "maxLength": ({"type": "string", "maxLength": 2}, ["", "é日", "\n😀"], ["abc"]),
    "items": ({"type": "array", "items": {"type": "null"}}, [[], [None, None]], [[1], [None, 1]]),
    "minItems": ({"type": "array", "items": {"type": "null"}, "minItems": 2}, [[None] * 2, [None] * 3], [[], [None]]),
    "maxItems": ({"type": "array", "items": {"type": "null"}, "maxItems": 1}, [[], [None]], [[None] * 2]),
    "properties": ({**CLOSED, "properties": {"a": {"type": "null"}}}, [{}, {"a": None}], [{"a": 1}]),
    "required": (
        {**CLOSED, "properties": {"a": {"const": 1}, "b": {"const": 2}, "c": {"const": 3}}, "required": ["b"]},
        [{"b": 2}, {"a": 1, "b": 2}, {"b": 2, "c": 3}, {"a": 1, "b": 2, "c": 3}],
        [{}, {"a": 1}, {"c": 3}, {"a": 1, "c": 3}],
    ),
    "additionalProperties": (
        {**CLOSED, "properties": {"a": {"const": 1}}},
        [{}, {"a": 1}],
        [{"b": 1}, {"a": 1, "b": 1}],
    ),
}
REFUSED: dict[str, dict[str, Any]] = {
    "allOf": {"allOf": [{"type": "integer"}]},
    "oneOf": {"oneOf": [{"type": "integer"}, {"type": "null"}]},
    "patternProperties": {**CLOSED, "patternProperties": {"^x": {"type": "null"}}},
    "minProperties": {**CLOSED, "minProperties": 0},
    "maxProperties": {**CLOSED, "maxProperties": 3},
    "prefixItems": {"type": "array", "prefixItems": [{"type": "null"}], "items": {"type": "null"}},
    "pattern": {"type": "string", "pattern": "^a+$"},
    "format": {"type": "string", "format": "date"},
    "minimum": {"type": "integer", "minimum": 3},
    "maximum": {"type": "number", "maximum": 3},
    "exclusiveMinimum": {"type": "integer", "exclusiveMinimum": 3},
    "exclusiveMaximum": {"type": "number", "exclusiveMaximum": 3},
    "multipleOf": {"type": "integer", "multipleOf": 3},
}


def compiled(engine: str, constraint: Constraint) -> Any:
    found = COMPILERS[engine].compile(constraint)
    assert found.engine == engine
    return found


def test_every_engine_has_a_table_and_every_keyword_a_schema() -> None:
    from drawloom.grammar.compiler import _ENGINES

    enforced = {name for name, known in KEYWORDS.items() if known.treatment is Treatment.ENFORCED}
    assert set(ENGINES) == set(_ENGINES) and ENGINES["llguidance"].keywords == enforced
    for engine in REGULAR:
        assert ENGINES[engine].keywords == set(INSTANCES)
    assert enforced - set(INSTANCES) - {"additionalItems"} == set(REFUSED)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("keyword", INSTANCES)
def test_the_table_is_true(engine: str, keyword: str) -> None:
    schema, valid, invalid = INSTANCES[keyword]
    truth = jsonschema_rs.validator_for(schema)
    grammar = compiled(engine, JSONSchema(schema))
    assert grammar.report[f"$.{keyword}"] == "enforced"
    for value in valid:
        assert truth.is_valid(value) and grammar.accepts(json.dumps(value, ensure_ascii=False)), value
    for value in invalid:
        assert not truth.is_valid(value) and not grammar.accepts(json.dumps(value, ensure_ascii=False)), value


@pytest.mark.parametrize("engine", REGULAR)
@pytest.mark.parametrize("keyword", REFUSED)
def test_what_the_table_lacks_is_refused_with_its_path(engine: str, keyword: str) -> None:
    schema = {**CLOSED, "properties": {"x": {"anyOf": [{"type": "null"}, REFUSED[keyword]]}}}
    assert compiled("llguidance", JSONSchema(schema)).accepts('{"x": null}')
    assert GrammarCompiler(BYTES).compile(JSONSchema(schema)).engine == "llguidance"
    with pytest.raises(UnsupportedConstraint) as refused:
        compiled(engine, JSONSchema(schema))
    assert (refused.value.path, refused.value.keyword) == ("$.properties.x.anyOf[1]", keyword)


@pytest.mark.parametrize("engine", REGULAR)
@pytest.mark.parametrize(
    ("schema", "path", "keyword"),
    [
        ({}, "$", "type"),
        ({"minLength": 3}, "$", "minLength"),
        ({"anyOf": [{"type": "integer"}, {}]}, "$.anyOf[1]", "type"),
        ({"anyOf": [{"type": "integer"}, True]}, "$.anyOf[1]", "type"),
        ({"type": "array"}, "$.items", "type"),
        ({**CLOSED, "properties": {"a": {"anyOf": [False, False]}}}, "$.properties.a", "anyOf"),
        ({**CLOSED, "properties": {"a": {"enum": [1], "type": "string"}}}, "$.properties.a", "enum"),
        ({**CLOSED, "properties": {"a": {"enum": []}}}, "$.properties.a", "enum"),
        (
            {**CLOSED, "properties": {"a": {"type": "array", "items": False, "minItems": 1}}},
            "$.properties.a.items",
            "false",
        ),
        ({"type": "object"}, "$", "additionalProperties"),
        ({"type": "object", "properties": {"a": {"type": "null"}}}, "$", "additionalProperties"),
        ({**CLOSED, "properties": {"a": {}}}, "$.properties.a", "type"),
        ({"enum": ["a"], "maxLength": 3}, "$", "maxLength"),
        ({"enum": [1.5]}, "$", "enum"),
        ({"type": "string", "enum": ["abc"], "pattern": "b"}, "$", "pattern"),
        ({**CLOSED, "properties": {f"p{i}": {"type": "null"} for i in range(13)}}, "$", "properties"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "$", "maxLength"),
        ({"$ref": "#/$defs/a", "type": "null", "$defs": {"a": {"type": "null"}}}, "$", "type"),
        ({"anyOf": [{"type": "null"}], "type": "null"}, "$", "type"),
    ],
)
def test_schemas_that_are_no_regular_language(engine: str, schema: Any, path: str, keyword: str) -> None:
    with pytest.raises((UnsupportedConstraint, UnsatisfiableConstraint)) as refused:
        compiled(engine, JSONSchema(schema))
    assert isinstance(refused.value, UnsupportedConstraint)
    assert (refused.value.path, refused.value.keyword) == (path, keyword)


@pytest.mark.parametrize("engine", REGULAR)
def test_parts_that_have_no_text_are_left_out(engine: str) -> None:
    empty_list = {"type": "array", "items": False}
    schema = {**CLOSED, "properties": {"a": False, "b": {"anyOf": [False, {"type": "null"}]}, "c": empty_list}}
    grammar = compiled(engine, JSONSchema(schema))
    assert all(map(grammar.accepts, ("{}", '{"b": null}', '{"c": []}', '{"b": null, "c": []}')))
    assert not any(map(grammar.accepts, ('{"a": }', '{"a": null}', '{"b": }', '{"c": [null]}')))


@pytest.mark.parametrize("engine", REGULAR)
@pytest.mark.parametrize(
    ("constraint", "keyword"),
    [
        (Regex(r"a\w"), r"\w"),
        (Regex(r"[\d-]"), r"\d"),
        (Regex(r"[^\s]"), r"\s"),
        (Regex(r"\p{Lu}"), r"\p{Lu}"),
        (Regex("(?i)a"), "IGNORECASE"),
        (Regex(r"a[^\x00-\U0010ffff]"), "a class without characters"),
        (EBNF('start: "a"'), "grammar"),
        (JSONSchema({"type": "null"}, whitespace=2), "whitespace"),
    ],
)
def test_constraints_that_name_what_is_missing(engine: str, constraint: Constraint, keyword: str) -> None:
    with pytest.raises(UnsupportedConstraint) as refused:
        compiled(engine, constraint)
    assert (refused.value.path, refused.value.keyword) == ("$", keyword)


TREE = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "c": {"type": "array", "items": {"$ref": "#"}}},
    "additionalProperties": False,
}


def test_masks_that_bar_what_is_accepted_are_out_of_reach() -> None:
    """xgrammar bars `aaaaaaaa` behind the first token of a left recursion and `}]` behind an item of this tree."""
    for grammar in (EBNF('start: start "a" | "a"'), EBNF('root ::= root "a" | "a"'), EBNF('start: "a" start | "a"')):
        with pytest.raises(UnsupportedConstraint):
            compiled("xgrammar", grammar)
    with pytest.raises(UnsupportedConstraint) as refused:
        compiled("xgrammar", JSONSchema(TREE))
    assert (refused.value.path, refused.value.keyword) == ("$.properties.c.items", "$ref")
    nested: dict[str, Any] = {**CLOSED, "properties": {"v": {"type": "integer"}}}
    nested = {**CLOSED, "properties": {"v": {"type": "integer"}, "c": {"type": "array", "items": nested}}}
    bitmask = np.zeros((1, (BYTES.size + 31) // 32), dtype=np.int32)
    same: list[tuple[Constraint, bytes, bytes]] = [
        (Regex("a+"), b"a", b"aaaaaaaa"),
        (JSONSchema(nested), b'{"v": 1, "c": [{"v": 1', b"}]"),
    ]
    for constraint, before, token in same:
        matcher = compiled("xgrammar", constraint).matcher()
        assert all(map(matcher.accept, before))
        matcher.fill_bitmask(bitmask)
        token_id = TOKENS.index(token)
        assert bitmask[0, token_id // 32] >> (token_id % 32) & 1 and matcher.accept(token_id)


@pytest.mark.parametrize("engine", ENGINES)
def test_d03_a_slash_is_a_slash(engine: str) -> None:
    for schema in ({"const": "docs/api/v2"}, {"enum": ["docs/api/v2", "/"]}):
        grammar = compiled(engine, JSONSchema(schema))
        assert grammar.accepts('"docs/api/v2"') and not grammar.accepts('"docs/api"')
        matcher = grammar.matcher()
        spelled = [*b'"docs', TOKENS.index(b"/a"), *b'pi/v2"']
        assert matcher.validate_drafts(spelled) == len(spelled)
    assert compiled(engine, Choice(["docs/api/v2"])).accepts("docs/api/v2")
    closed = JSONSchema({**CLOSED, "properties": {"a/b": {"const": 1}}, "required": ["a/b"]})
    assert compiled(engine, closed).accepts('{"a/b": 1}')


@pytest.mark.parametrize("engine", ENGINES)
def test_d04_values_are_unicode_however_the_schema_spells_them(engine: str) -> None:
    values = ["東京", "São Paulo", "naïve 😀"]
    raw, escaped = (json.dumps({"enum": values}, ensure_ascii=ascii_only) for ascii_only in (False, True))
    assert "\\ud83d\\ude00" in escaped
    for text in (raw, escaped):
        grammar = compiled(engine, JSONSchema(text))
        assert all(grammar.accepts(f'"{value}"') for value in values)
        for value in values:
            assert not grammar.accepts(f'"{value.encode().decode("latin-1")}"') and not grammar.accepts('"??"')
        matcher = grammar.matcher()
        spelled = [ord('"'), TOKENS.index(b"\xe6\x9d"), *"東京".encode()[2:], ord('"')]
        assert matcher.validate_drafts(spelled) == len(spelled)
    key = JSONSchema({**CLOSED, "properties": {"東京": {"const": "é"}}, "required": ["東京"]})
    assert compiled(engine, key).accepts('{"東京": "é"}')


def test_d07_a_range_across_zero() -> None:
    schema = {"type": "number", "minimum": -2, "maximum": 2}
    grammar = compiled("llguidance", JSONSchema(schema))
    for text in ("-0.25", "0", "1.75", "-2", "2", "-0.0001", "-1.999", "0.5"):
        assert grammar.accepts(text), text
    for text in ("2.5", "-2.01", "-3", "2.0001", "20", "-20", "-", ".5"):
        assert not grammar.accepts(text), text
    drafts = [TOKENS.index(b"-0."), ord("2"), ord("5")]
    assert grammar.matcher().validate_drafts(drafts) == 3
    bounds = [
        ("exclusiveMinimum", -2, "-1.9", "-2"),
        ("exclusiveMaximum", 0, "-0.5", "0"),
        ("minimum", -0.5, "-0.5", "-0.6"),
    ]
    for keyword, bound, good, bad in bounds:
        grammar = compiled("llguidance", JSONSchema({"type": "number", keyword: bound}))
        assert grammar.accepts(good) and not grammar.accepts(bad)
    for engine in REGULAR:
        with pytest.raises(UnsupportedConstraint) as refused:
            compiled(engine, JSONSchema(schema))
        assert refused.value.keyword == "minimum"
        unbounded = compiled(engine, JSONSchema({"type": "number"}))
        assert all(map(unbounded.accepts, ("-0.25", "0", "-0", "1e5", "-2E-7"))) and not unbounded.accepts("01")


MEMORY = """
from drawloom.grammar import GrammarCompiler, Regex, Vocabulary

letters = "abcdefghijklmnopqrstuvwxyz"
pairs = [(a + b).encode() for a in letters for b in letters]
triples = [pair + c.encode() for pair in pairs for c in letters][:8000]
tokens = [bytes([value]) for value in range(256)] + pairs + triples + [b""]
compiler = GrammarCompiler(Vocabulary(tokens, eos_ids=[len(tokens) - 1]), engines="{engine}")
compiler.compile(Regex("warm"))
before, estimate = resident(), compiler.cache_stats().bytes
for i in range(15):
    compiler.compile(Regex("X%d[a-z]{{1,40}}" % i))
print(json.dumps([compiler.cache_stats().bytes - estimate, resident() - before]))
"""


@pytest.mark.parametrize("engine", REGULAR)
def test_estimated_bytes_are_near_resident_memory(engine: str, run_weighed: Callable[[str], Any]) -> None:
    estimated, resident = run_weighed(MEMORY.format(engine=engine))
    assert resident / 2 < estimated < resident * 6, (estimated, resident)
