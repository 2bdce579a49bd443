"""The compiler's threads, options and reports."""

import threading

import numpy as np
import pytest

from drawloom.errors import ConstraintError, InvalidConstraint, UnsupportedConstraint
from drawloom.grammar import Choice, GrammarCompiler, JSONSchema, Regex, Vocabulary


def test_equal_constraints_share_one_compiled_grammar(compiler: GrammarCompiler) -> None:
    assert compiler.compile(Regex("x+y")) is compiler.compile(Regex("x+y"))
    assert compiler.compile(JSONSchema({"title": "x"})) is compiler.compile(JSONSchema('{"title": "x"}'))
    assert compiler.compile(Choice(["p", "q"])) is not compiler.compile(Choice(["q", "p"]))
    assert compiler.compile(Regex("x+y", 2)) is not compiler.compile(Regex("x+y"))


def test_refusals_are_not_kept_and_repeat(compiler: GrammarCompiler) -> None:
    for _ in range(2):
        with pytest.raises(UnsupportedConstraint):
            compiler.compile(Regex("(?=a)"))


def test_engines_are_named(vocabulary: Vocabulary) -> None:
    assert GrammarCompiler(vocabulary, engines="llguidance").compile(Regex("a")).engine == "llguidance"
    for name in ("outlines", "", None):
        with pytest.raises(InvalidConstraint):
            GrammarCompiler(vocabulary, engines=name)  # type: ignore[arg-type]
    with pytest.raises(InvalidConstraint):
        GrammarCompiler(vocabulary).compile("a+")  # type: ignore[arg-type]


def test_reports_cannot_be_changed(compiler: GrammarCompiler) -> None:
    report = compiler.compile(JSONSchema({"type": "integer", "title": "n"})).report
    assert dict(report) == {"$.type": "enforced", "$.title": "annotation"}
    with pytest.raises(TypeError):
        report["$.type"] = "ignored"  # type: ignore[index]


def test_threads_compile_and_match_side_by_side(vocabulary: Vocabulary) -> None:
    compiler = GrammarCompiler(vocabulary, cache_bytes=400_000)
    schema = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 9}}, "required": ["a"]}
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            bitmask = np.zeros((1, (vocabulary.size + 31) // 32), dtype=np.int32)
            for turn in range(30):
                compiled = compiler.compile(JSONSchema({**schema, "title": str((number + turn) % 5)}))
                matcher = compiled.matcher()
                for value in b'{"a": "x%d"}' % number:
                    matcher.fill_bitmask(bitmask)
                    assert bitmask[0, value // 32] >> (value % 32) & 1
                    assert matcher.accept(value)
                assert matcher.can_terminate and compiled.accepts('{"a": "y"}')
                with pytest.raises(ConstraintError):
                    compiler.compile(JSONSchema({"not": {}}))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
