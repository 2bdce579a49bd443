"""Published schemas and regexes under the engines that are asked for by name: right, or refused with a typed error."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from drawloom.errors import CompileBudgetExceeded, ConstraintError
from drawloom.grammar import CompiledGrammar, Constraint, GrammarCompiler, JSONSchema, Regex, Vocabulary

BYTES = Vocabulary([bytes([value]) for value in range(256)] + [b""], eos_ids=[256])


@pytest.fixture(scope="module", params=["xgrammar", "outlines-core"])
def compiler(request: pytest.FixtureRequest) -> GrammarCompiler:
    return GrammarCompiler(BYTES, engines=request.param)


def compiled(compiler: GrammarCompiler, constraint: Constraint, counts: dict[str, int]) -> CompiledGrammar | None:
    try:
        return compiler.compile(constraint)
    except ConstraintError as error:
        counts["too large" if isinstance(error, CompileBudgetExceeded) else "refused"] += 1
        return None


def suite(folder: Path) -> Iterator[dict[str, Any]]:
    for file in sorted((folder / "json_schema_test_suite" / "tests").rglob("*.json")):
        yield from json.loads(file.read_text("utf-8"))


def test_the_suite_accepts_nothing_invalid(
    compiler: GrammarCompiler, data_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = dict.fromkeys(("right", "over", "under", "refused", "too large"), 0)
    wrong: list[str] = []
    for group in suite(data_folder):
        grammar = compiled(compiler, JSONSchema(group["schema"]), counts)
        for case in group["tests"] if grammar is not None else ():
            assert grammar is not None
            found = grammar.accepts(json.dumps(case["data"], ensure_ascii=False))
            kind = "right" if found == case["valid"] else "over" if case["valid"] else "under"
            counts[kind] += 1
            if kind != "right":
                wrong.append(f"{kind}: {group['description']}: {case['description']}: {json.dumps(case['data'])}")
    with capsys.disabled():
        print(f"\n{compiler.compile(Regex('')).engine}, JSON Schema test suite: {counts}")
    assert all(".0" in case for case in wrong), f"an integer is written without a fraction, all else is right: {wrong}"
    assert counts["right"] > 60 and counts["under"] == 0


def test_regexes_are_right_or_refused(
    compiler: GrammarCompiler,
    data_folder: Path,
    count_regexes: Callable[[Path, GrammarCompiler], dict[str, int]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    counts = count_regexes(data_folder, compiler)
    with capsys.disabled():
        print(f"\n{compiler.compile(Regex('')).engine}, regexes: {counts}")
    assert counts["right"] > 20
