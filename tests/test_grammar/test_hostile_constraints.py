"""Constraints meant to break the compiler: each is compiled, or refused with a typed error, and nothing crashes."""

import json
import threading
from typing import Any

import pytest

from drawloom.errors import (
    CompileBudgetExceeded,
    ConstraintError,
    EngineError,
    UnsatisfiableConstraint,
    UnsupportedConstraint,
)
from drawloom.grammar import EBNF, GrammarCompiler, JSONSchema, Regex

INT = {"type": "integer"}


def nested(depth: int, step: str) -> Any:
    node: Any = INT
    for _ in range(depth):
        node = {"type": "object", "properties": {"a": node}} if step == "object" else {"type": "array", "items": node}
    return node


def chain(length: int, link: str) -> dict[str, Any]:
    """Definitions that each lead to the next. The engine would walk them by recursion and overflow its stack."""

    def node(target: str) -> Any:
        reference = {"$ref": f"#/$defs/{target}"}
        if link == "array":
            return {"type": "array", "items": reference}
        return {"allOf": [reference, {"type": "object"}]} if link == "allOf" else reference

    definitions = {f"a{i}": node(f"a{i + 1}") for i in range(length)} | {f"a{length}": {"type": "object"}}
    return {"$ref": "#/$defs/a0", "$defs": definitions}


def alternatives(depth: int) -> dict[str, Any]:
    """D21: one that doubles with each level."""
    node: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        options = [{"type": "object", "properties": {name: node}, "required": [name]} for name in "ab"]
        node = {"oneOf": options}
    return node


REFUSED: dict[str, tuple[Any, type[ConstraintError]]] = {
    "200 objects": (nested(200, "object"), CompileBudgetExceeded),
    "150 arrays": (nested(150, "array"), CompileBudgetExceeded),
    "a chain of references": (chain(2_000, "reference"), CompileBudgetExceeded),
    "a chain of arrays": (chain(2_000, "array"), CompileBudgetExceeded),
    "a chain of intersections": (chain(2_000, "allOf"), CompileBudgetExceeded),
    "a product of choices": (
        {"allOf": [{"anyOf": [{"required": [f"a{i}{j}"]} for j in range(3)]} for i in range(16)]},
        CompileBudgetExceeded,
    ),
    "alternatives of alternatives": (alternatives(14), CompileBudgetExceeded),
    "itself": ({"$ref": "#"}, UnsatisfiableConstraint),
    "each other": (
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        UnsatisfiableConstraint,
    ),
    "a branch that is the whole": ({"oneOf": [{"$ref": "#"}, {"type": "null"}]}, UnsupportedConstraint),
    "a large modulus": ({"multipleOf": 999_983}, UnsupportedConstraint),
    "a large pattern": ({"type": "string", "pattern": "^([a-z][0-9])+$", "minLength": 10_000}, CompileBudgetExceeded),
    "overlapping patterns": ({"patternProperties": {"^a": INT, "b$": INT}}, UnsupportedConstraint),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_typed_error(name: str, compiler: GrammarCompiler) -> None:
    schema, error = REFUSED[name]
    with pytest.raises(error):
        compiler.compile(JSONSchema(schema))


@pytest.mark.parametrize("depth", [2, 8])
def test_nested_alternatives_are_refused_by_path_and_keyword(depth: int, compiler: GrammarCompiler) -> None:
    with pytest.raises(UnsupportedConstraint) as refused:
        compiler.compile(JSONSchema(alternatives(depth)))
    assert refused.value.keyword == "oneOf" and "coerce" not in str(refused.value)
    assert refused.value.path == "$" + ".oneOf[0].properties.a" * (depth - 1)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"items":' * 3_000 + "{}" + "}" * 3_000])
def test_deep_texts_are_refused_when_they_are_read(text: str) -> None:
    with pytest.raises(CompileBudgetExceeded):
        JSONSchema(text)


COMPILED: dict[str, tuple[Any, str, str]] = {
    "5,000 values": ({"enum": [f"value{i}" for i in range(5_000)]}, '"value4999"', '"value5000"'),
    "50 objects": (nested(50, "object"), '{"a": ' * 50 + "1" + "}" * 50, '{"a": ' * 50 + "null" + "}" * 50),
    "a chain of 100": (chain(100, "array"), "[" * 100 + "{}" + "]" * 100, "[" * 99 + "{}" + "]" * 99),
    "exponential expansion": (
        {
            "$ref": "#/$defs/a0",
            "$defs": {
                f"a{i}": {"properties": {k: {"$ref": f"#/$defs/a{i + 1}"} for k in "abcdefghij"}} for i in range(11)
            }
            | {"a11": INT},
        },
        '{"a": {"j": {"c": {}}}}',
        '{"a": {"j": {"a": {"a": {"a": {"a": {"a": {"a": {"a": {"a": {"a": "x"}}}}}}}}}}}',
    ),
    "1,000 required keys": (
        {
            "type": "object",
            "properties": {f"p{i}": INT for i in range(1_000)},
            "required": [f"p{i}" for i in range(1_000)],
        },
        json.dumps({f"p{i}": i for i in range(1_000)}),
        json.dumps({f"p{i}": i for i in range(999)}),
    ),
    "300 optional keys": (
        {"type": "object", "properties": {f"p{i}": INT for i in range(300)}, "additionalProperties": False},
        '{"p7": 1, "p250": 1}',
        '{"p300": 1}',
    ),
    "a million letters": ({"type": "string", "pattern": "^a{1,1000000}$"}, '"aaa"', '""'),
    "a hundred thousand items": ({"type": "array", "maxItems": 100_000, "items": INT}, "[1, 2]", "[null]"),
    "ambiguous alternatives": ({"type": "string", "pattern": "^(a|a)*(a|aa)*b$"}, '"' + "a" * 200 + 'b"', '"aac"'),
    "a letter from behind": ({"type": "string", "pattern": "^[ab]*a[ab]{40}$"}, f'"a{"b" * 40}"', f'"b{"a" * 40}"'),
}


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_and_right(name: str, compiler: GrammarCompiler) -> None:
    schema, valid, invalid = COMPILED[name]
    compiled = compiler.compile(JSONSchema(schema))
    assert compiled.accepts(valid) and not compiled.accepts(invalid)


def test_deep_references_in_a_thread_of_its_own(compiler: GrammarCompiler) -> None:
    """Other threads have smaller stacks than the first one."""
    found: list[bool] = []
    previous = threading.stack_size(1 << 21)
    try:
        schema = JSONSchema({"$comment": "another key of the cache", **chain(110, "array")})
        thread = threading.Thread(target=lambda: found.append(compiler.compile(schema).accepts("[]")))
        thread.start()
        thread.join()
    finally:
        threading.stack_size(previous)
    assert found == [True]


def test_engines_may_give_up_while_matching_but_say_so(compiler: GrammarCompiler) -> None:
    limited = compiler.compile(JSONSchema({"type": "string", "minLength": 60_000}))
    try:
        assert limited.accepts('"' + "a" * 60_000 + '"')
    except CompileBudgetExceeded:
        pass
    try:
        assert not compiler.compile(EBNF('start: s\ns: s s | "a"')).accepts("a" * 40 + "b")
    except (CompileBudgetExceeded, EngineError):
        pass
    assert compiler.compile(Regex("a{0,200000}")).accepts("a" * 1_000)
