"""Schemas from the wild: nothing invalid is accepted, neither from the data's tests nor from random walks."""

import json
import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from drawloom.errors import ConstraintError
from drawloom.grammar import CompiledGrammar, Constraint, GrammarMatcher, JSONSchema, Vocabulary

Compile = Callable[[Constraint], CompiledGrammar]
Allowed = Callable[[GrammarMatcher], list[int]]

CLOSERS = [*b'"}]', *range(259, 262)]


def sample(folder: Path, share: int) -> Iterator[dict[str, Any]]:
    """A fixed share of the schemas, chosen by their names."""
    for file in sorted((folder / "jsonschemabench").glob("*.jsonl")):
        for line in file.read_text("utf-8").splitlines():
            row = json.loads(line)
            if zlib.crc32(row["id"].encode()) % share == 0:
                yield row


def test_no_invalid_text_is_accepted(data_folder: Path, compile_: Compile, capsys: pytest.CaptureFixture[str]) -> None:
    counts: Counter[str] = Counter()
    for row in sample(data_folder, 6):
        try:
            compiled = compile_(JSONSchema(row["schema"]))
        except ConstraintError as error:
            counts[f"refused: {type(error).__name__}"] += 1
            continue
        refused_valid = 0
        for case in row["tests"]:
            found = compiled.accepts(json.dumps(case["data"]))
            assert case["valid"] or not found, (row["id"], case["data"])
            refused_valid += case["valid"] and not found
        counts["over" if refused_valid else "exact"] += 1
    with capsys.disabled():
        print(f"\nJSONSchemaBench, every sixth schema: {dict(counts)}")
    assert counts["exact"] > 150 and counts["over"] <= 8


def test_random_walks_end_in_valid_json(
    data_folder: Path, compile_: Compile, allowed: Allowed, vocabulary: Vocabulary
) -> None:
    rng = random.Random(0)
    finished = 0
    for row in sample(data_folder, 16):
        try:
            compiled = compile_(JSONSchema(row["schema"]))
            truth = jsonschema_rs.validator_for(row["schema"], validate_formats=True)
        except (ConstraintError, ValueError):
            continue
        for _ in range(2):
            text = walk(compiled.matcher(), vocabulary, allowed, rng)
            if text is not None:
                finished += 1
                value = json.loads(text)
                assert "Infinity" in json.dumps(value) or truth.is_valid(value), (row["id"], text)
                assert compiled.accepts(text.decode())
    assert finished > 80


def walk(matcher: GrammarMatcher, vocabulary: Vocabulary, allowed: Allowed, rng: random.Random) -> bytes | None:
    text = b""
    for step in range(300):
        choices = [token_id for token_id in allowed(matcher) if token_id not in vocabulary.eos_ids]
        if not choices or (matcher.can_terminate and rng.random() < 0.3):
            return text
        closing = [token_id for token_id in choices if token_id in CLOSERS]
        token_id = rng.choice(closing if closing and step > 40 and rng.random() < 0.8 else choices)
        assert matcher.accept(token_id), text
        text += vocabulary.token_bytes(token_id)
    return None
