"""The compiler's cache: what shares an entry, what goes first, and how much memory that takes."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from drawloom.errors import InvalidConstraint, UnsupportedConstraint
from drawloom.grammar import CompiledGrammar, Constraint, GrammarCompiler, JSONSchema, Regex, Vocabulary
from drawloom.grammar.compile_cache import CompileCache

Compile = Callable[[Constraint], CompiledGrammar]

A_THEN_B: dict[str, Any] = {"properties": {"a": {}, "b": {}}}
ENUM_OR_STRING = [{"$ref": "#/enum/0"}, {"type": "string"}]
SAME: list[tuple[Any, Any]] = [
    ({"type": "string", "maxLength": 3}, '{"maxLength": 3,\n "type" : "string"}'),
    ({"type": ["null", "string"]}, {"type": ["string", "null"]}),
    ({"enum": ["x", "y", 1]}, {"enum": [1, "y", "x"]}),
    ({**A_THEN_B, "required": ["a", "b"]}, {"required": ["b", "a"], **A_THEN_B}),
    ({"items": {"type": "null", "title": "t"}}, {"items": {"title": "t", "type": "null"}}),
    ({"anyOf": [{"minimum": 1, "type": "number"}]}, {"anyOf": [{"type": "number", "minimum": 1}]}),
    ({"$ref": "#/$defs/d", "$defs": {"d": {"type": "null", "title": "t"}}}, None),
]
DIFFERENT: list[tuple[Any, Any]] = [
    (A_THEN_B, {"properties": {"b": {}, "a": {}}}),
    ({"required": ["a", "b"]}, {"required": ["b", "a"]}),
    ({**A_THEN_B, "required": ["y", "x"]}, {**A_THEN_B, "required": ["x", "y"]}),
    ({"allOf": [{"required": ["b"]}], **A_THEN_B}, {**A_THEN_B, "allOf": [{"required": ["b"]}]}),
    ({"enum": [{"a": 1, "b": 2}]}, {"enum": [{"b": 2, "a": 1}]}),
    ({"const": ["x", "y"]}, {"const": ["y", "x"]}),
    ({"properties": {"required": {}, "enum": {}}}, {"properties": {"enum": {}, "required": {}}}),
    ({"enum": [True, False, "x"], "anyOf": ENUM_OR_STRING}, {"enum": [False, True, "x"], "anyOf": ENUM_OR_STRING}),
    ({"prefixItems": [{}, {"type": "null"}]}, {"prefixItems": [{"type": "null"}, {}]}),
    ({"anyOf": [{"type": "null"}, {}]}, {"anyOf": [{}, {"type": "null"}]}),
    ({"title": "x"}, {"title": "y"}),
]
TEXTS = """null 1 "x" "y" true [null] ["x", "y"] ["y", "x"] [null, 1] [1, null] {} {"a": 1, "b": 2} {"b": 2, "a": 1}
{"a": 1, "b": 1, "x": 1, "y": 1} {"a": 1, "b": 1, "y": 1, "x": 1} {"enum": 1, "required": 1} "xyz" "wxyz" false"""


def texts() -> list[str]:
    found, depth = [""], 0
    for char in TEXTS.replace("\n", " "):
        depth += char in "[{"
        depth -= char in "]}"
        if char == " " and depth == 0:
            found.append("")
        else:
            found[-1] += char
    return found


@pytest.mark.parametrize(("left", "right"), SAME, ids=str)
def test_spelling_alone_makes_no_second_entry(left: Any, right: Any, vocabulary: Vocabulary) -> None:
    right = right if right is not None else {"$defs": {"d": {"title": "t", "type": "null"}}, "$ref": "#/$defs/d"}
    compiler = GrammarCompiler(vocabulary)
    first, second = compiler.compile(JSONSchema(left)), compiler.compile(JSONSchema(right))
    stats = compiler.cache_stats()
    assert (stats.hits, stats.misses, stats.entries) == (1, 1, 1)
    alone = GrammarCompiler(vocabulary).compile(JSONSchema(right))
    for text in texts():
        assert first.accepts(text) == alone.accepts(text) == second.accepts(text), text
    assert dict(second.report) == dict(alone.report) and second.constraint == JSONSchema(right)
    assert compiler.compile(JSONSchema(left)) is first, "the same spelling gives the same object"


@pytest.mark.parametrize(("left", "right"), DIFFERENT, ids=str)
def test_meaning_makes_a_second_entry(left: Any, right: Any, vocabulary: Vocabulary) -> None:
    compiler = GrammarCompiler(vocabulary)
    compiler.compile(JSONSchema(left))
    shared = compiler.compile(JSONSchema(right))
    assert compiler.cache_stats().misses == 2
    alone = GrammarCompiler(vocabulary).compile(JSONSchema(right))
    assert [shared.accepts(text) for text in texts()] == [alone.accepts(text) for text in texts()]


def test_options_are_part_of_the_key(vocabulary: Vocabulary) -> None:
    compiler = GrammarCompiler(vocabulary)
    spaced, compact = (compiler.compile(JSONSchema({}, whitespace=style)) for style in ("spaced", "compact"))
    assert spaced.accepts("[1, 1]") and not compact.accepts("[1, 1]") and compact.accepts("[1,1]")
    assert compiler.compile(JSONSchema({}, whitespace=1)).accepts("[1 ,1]")
    assert compiler.compile(Regex("x.y", 16)) is not compiler.compile(Regex("x.y"))


def test_the_least_recently_used_go_first_and_the_bytes_hold(vocabulary: Vocabulary) -> None:
    one = GrammarCompiler(vocabulary).compile(Regex("a")).num_bytes
    compiler = GrammarCompiler(vocabulary, cache_bytes=2 * one + one // 2)
    first, second = compiler.compile(Regex("a")), compiler.compile(Regex("b"))
    assert compiler.compile(Regex("a")) is first
    compiler.compile(Regex("c"))
    assert compiler.compile(Regex("a")) is first
    assert compiler.compile(Regex("b")) is not second
    stats = compiler.cache_stats()
    assert (stats.hits, stats.misses, stats.evictions, stats.entries) == (2, 4, 2, 2)
    assert stats.bytes == 2 * one


def test_what_is_larger_than_the_cache_is_served_and_not_kept(vocabulary: Vocabulary) -> None:
    compiler = GrammarCompiler(vocabulary, cache_bytes=GrammarCompiler(vocabulary).compile(Regex("a")).num_bytes)
    small = compiler.compile(Regex("a"))
    assert compiler.compile(Regex("ab" * 200)).accepts("ab" * 200)
    assert compiler.compile(Regex("a")) is small, "nothing had to make room for it"
    assert compiler.cache_stats().oversized == 1 and compiler.cache_stats().evictions == 0
    none = GrammarCompiler(vocabulary, cache_bytes=0)
    assert none.compile(Regex("a")) is not none.compile(Regex("a")) and none.cache_stats().bytes == 0


@pytest.mark.parametrize("cache_bytes", [-1, 1.5, True, None])
def test_sizes_that_are_none(cache_bytes: Any, vocabulary: Vocabulary) -> None:
    with pytest.raises(ValueError, match="cache_bytes"):
        GrammarCompiler(vocabulary, cache_bytes=cache_bytes)


def test_refusals_are_counted_and_not_kept(vocabulary: Vocabulary) -> None:
    compiler = GrammarCompiler(vocabulary)
    for _ in range(2):
        with pytest.raises(UnsupportedConstraint):
            compiler.compile(JSONSchema({"not": {}}))
    assert compiler.cache_stats().misses == 2 and compiler.cache_stats().entries == 0
    with pytest.raises(InvalidConstraint, match="is no constraint"):
        compiler.compile({"type": "integer"})  # type: ignore[arg-type]


class Gate:
    """A compilation that begins, and ends once it is told to: with a value, or by raising."""

    def __init__(self, outcomes: list[object]) -> None:
        self.outcomes = outcomes
        self.begun, self.end = threading.Event(), threading.Event()

    def __call__(self) -> object:
        outcome = self.outcomes.pop(0)
        self.begun.set()
        assert self.end.wait(10)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


def ask_twice(cache: CompileCache[object], gate: Gate) -> list[object]:
    """Two threads ask for one key; the second surely while the first compiles."""
    answers: list[object] = []

    def ask() -> None:
        try:
            answers.append(cache.get("k", gate, lambda value: 1))
        except BaseException as error:
            answers.append(error)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    threads[0].start()
    assert gate.begun.wait(10)
    threads[1].start()
    while cache.stats().hits < 1:
        pass
    gate.end.set()
    for thread in threads:
        thread.join(10)
    return answers


def test_two_threads_compile_once() -> None:
    cache: CompileCache[object] = CompileCache(10)
    first, second = ask_twice(cache, Gate(["compiled"]))
    assert first is second and first == "compiled"
    assert (cache.stats().hits, cache.stats().misses, cache.stats().entries) == (1, 1, 1)


def test_an_error_reaches_whoever_waits_and_is_not_kept() -> None:
    cache: CompileCache[object] = CompileCache(10)
    refusal = InvalidConstraint("$", "planted")
    assert ask_twice(cache, Gate([refusal])) == [refusal, refusal]
    assert cache.stats().entries == 0
    assert cache.get("k", lambda: "compiled", lambda value: 1) == "compiled"


def test_an_interrupted_thread_takes_no_other_with_it() -> None:
    cache: CompileCache[object] = CompileCache(10)
    answers = ask_twice(cache, Gate([KeyboardInterrupt(), "compiled"]))
    assert {type(answer) for answer in answers} == {KeyboardInterrupt, str}
    assert (cache.stats().hits, cache.stats().misses) == (0, 2)


MEMORY = """
import sys
from drawloom.grammar import Choice, GrammarCompiler, JSONSchema, Regex, Vocabulary
import numpy

def schema(i, **more):
    return JSONSchema({"type": "object", "properties": {f"f{i:04d}": {"type": "integer"}, **more}})

def request(compiler, constraint, text):
    matcher = compiler.compile(constraint).matcher()
    bitmask = numpy.zeros((1, 9), dtype=numpy.int32)
    for value in text.encode():
        matcher.fill_bitmask(bitmask)
        assert matcher.accept(value), text

vocabulary = Vocabulary([bytes([value]) for value in range(256)] + [b""], eos_ids=[256])
"""

LEVEL = """
compiler = GrammarCompiler(vocabulary, cache_bytes=4 << 20)
grown = []
for i in range(480):
    request(compiler, schema(i), '{"f%04d": 7}' % i)
    request(compiler, schema(0), '{"f0000": 1}')
    if i % 120 == 119:
        grown.append(resident())
hot = compiler.cache_stats().hits
for i in range(470, 480):
    request(compiler, schema(i), '{"f%04d": 7}' % i)
stats = compiler.cache_stats()
print(json.dumps([grown, hot, stats.hits, stats.bytes, stats.evictions, stats.entries]))
"""

ESTIMATE = """
kinds = {
    "small schema": lambda i: (schema(i), '{"f%04d": 7}' % i),
    "large schema": lambda i: (
        schema(i, **{f"p{k}": {"type": "array", "items": {"type": "number", "minimum": k}} for k in range(30)}),
        json.dumps({f"f{i:04d}": 1, **{f"p{k}": [100, 200.5] for k in range(30)}}),
    ),
    "formats": lambda i: (
        schema(i, **{f"p{k}": {"type": "string", "format": "date-time"} for k in range(5)}),
        json.dumps({f"f{i:04d}": 1, **{f"p{k}": "2024-01-01T00:00:00Z" for k in range(5)}}),
    ),
    "regex": lambda i: (Regex(f"x{i}[a-z]{{1,20}}(abc|def)*"), f"x{i}hello"),
}
answer = {}
for name, kind in kinds.items():
    compiler = GrammarCompiler(vocabulary)
    request(compiler, *kind(9999))
    before, estimate = resident(), compiler.cache_stats().bytes
    for i in range(80):
        request(compiler, *kind(i))
    answer[name] = [compiler.cache_stats().bytes - estimate, resident() - before]
print(json.dumps(answer))
"""


def test_d22_distinct_schemas_leave_memory_level_and_hot_ones_stay_hits(run_weighed: Callable[[str], Any]) -> None:
    grown, hot, hits, num_bytes, evictions, entries = run_weighed(MEMORY + LEVEL)
    assert grown[-1] - grown[0] < 2 << 20, f"resident memory goes on growing: {grown}"
    assert hot == 480 and hits == hot + 10, "a schema in use never left, nor did the latest ones"
    assert num_bytes <= 4 << 20 and evictions == 480 - entries > 400


def test_estimated_bytes_are_near_resident_memory(run_weighed: Callable[[str], Any]) -> None:
    """By use and by allocator the truth varies: at least half of it is estimated, and at most six times it."""
    for name, (estimated, resident) in run_weighed(MEMORY + ESTIMATE).items():
        assert resident / 2 < estimated < resident * 6, (name, estimated, resident)
