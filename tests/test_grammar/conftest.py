"""A vocabulary small enough to try every token at every state: all bytes, some longer tokens, two ends of text, a stop
token that also has a text, and ids without bytes."""

import json
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from drawloom.errors import ConstraintError
from drawloom.grammar import CompiledGrammar, Constraint, GrammarCompiler, GrammarMatcher, Regex, Vocabulary

LONG_TOKENS = [
    b'", "',
    b'": ',
    b'{"',
    b'"}',
    b"}]",
    b'"]',
    b"ab",
    b"ab",
    b"abc",
    b"\xc3\xa9",
    b"\xe2\x82",
    b"1,",
    b", ",
    b' "',
    b"12",
    b"true",
    b"\\u00",
    b'\\"',
    b"\n\n",
    b'"}\n',
    b"\xff\xff",
    b"[]",
]
END, OTHER_END, STOP, UNUSED = range(256 + len(LONG_TOKENS), 260 + len(LONG_TOKENS))
TOKENS = [bytes([value]) for value in range(256)] + LONG_TOKENS + [b"", b"", b"ab", b"", b"", b""]


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    return Vocabulary(TOKENS, eos_ids=[END, OTHER_END, STOP])


@pytest.fixture(scope="session")
def compiler(vocabulary: Vocabulary) -> GrammarCompiler:
    return GrammarCompiler(vocabulary)


@pytest.fixture(scope="session")
def compile_(compiler: GrammarCompiler) -> Callable[[Constraint], CompiledGrammar]:
    return compiler.compile


@pytest.fixture(scope="session")
def allowed(vocabulary: Vocabulary) -> Callable[[GrammarMatcher], list[int]]:
    """The ids whose bit is on. Every other bit of the row, beyond the vocabulary too, must be off."""
    bitmask: NDArray[np.int32] = np.empty((3, (vocabulary.size + 31) // 32), dtype=np.int32)

    def ids(matcher: GrammarMatcher) -> list[int]:
        bitmask.fill(-1)
        matcher.fill_bitmask(bitmask, 1)
        assert (bitmask[0] == -1).all() and (bitmask[2] == -1).all(), "another row was written"
        return bits(bitmask[1])

    return ids


def bits(row: NDArray[np.int32]) -> list[int]:
    found = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()
    assert all(token_id < len(TOKENS) for token_id in found), "a bit beyond the vocabulary is on"
    return [int(token_id) for token_id in found]


@pytest.fixture(scope="session")
def spell() -> Callable[[GrammarMatcher, bytes | str], GrammarMatcher]:
    """Feeds text byte by byte."""

    def feed(matcher: GrammarMatcher, text: bytes | str) -> GrammarMatcher:
        data: Sequence[int] = text.encode() if isinstance(text, str) else text
        for index, value in enumerate(data):
            assert matcher.accept(value), f"byte {index} of {text!r} is refused"
        return matcher

    return feed


@pytest.fixture(scope="session")
def walk_masks(
    vocabulary: Vocabulary, allowed: Callable[[GrammarMatcher], list[int]]
) -> Callable[[CompiledGrammar, str, int], int]:
    """`walk_masks(compiled, seed, steps)`: six random texts, every token tried at every state; how many came to an end.

    A bit is on exactly where `accept` is true, and all ends of text are on exactly where the text may end.
    """
    ends = set(vocabulary.eos_ids)
    without_bytes = {i for i in range(vocabulary.size) if not vocabulary.token_bytes(i)} - ends

    def check_state(compiled: CompiledGrammar, matcher: GrammarMatcher, text: bytes) -> list[int]:
        on = set(allowed(matcher))
        for token_id in range(-1, vocabulary.size + 1):
            fork = matcher.fork()
            assert fork.accept(token_id) == (token_id in on), f"token {token_id} after {text!r}"
            assert matcher.validate_drafts([token_id]) == (token_id in on), f"draft {token_id} after {text!r}"
        assert on.isdisjoint(without_bytes)
        assert ends <= on if matcher.can_terminate else ends.isdisjoint(on)
        assert on, f"no way to go on after {text!r}"
        assert matcher.must_terminate == (matcher.can_terminate and on == ends) or not text
        if text.decode("utf-8", "ignore").encode() == text:
            assert compiled.accepts(text.decode()) == matcher.can_terminate
        return sorted(on - ends)

    def walk(compiled: CompiledGrammar, seed: str, steps: int) -> int:
        rng, finished = random.Random(seed), 0
        for _ in range(6):
            matcher, text = compiled.matcher(), b""
            for _ in range(steps):
                if not (choices := check_state(compiled, matcher, text)):
                    break
                token_id = rng.choice([i for i in choices if i >= 256] or choices)
                assert matcher.accept(token_id)
                text += vocabulary.token_bytes(token_id)
            if matcher.can_terminate:
                finished += 1
                assert matcher.accept(rng.choice(vocabulary.eos_ids))
                assert matcher.is_terminated and not matcher.can_terminate and allowed(matcher) == []
        return finished

    return walk


@pytest.fixture(scope="session")
def check_rollback(allowed: Callable[[GrammarMatcher], list[int]]) -> Callable[[GrammarMatcher, str], None]:
    """`check_rollback(matcher, seed)`: wherever it goes back to, and in a fork, all is as it was."""

    def check(matcher: GrammarMatcher, seed: str) -> None:
        rng = random.Random(seed)
        masks: list[list[int]] = [allowed(matcher)]
        path: list[int] = []
        for _ in range(30):
            if not masks[-1]:
                break
            path.append(rng.choice(masks[-1]))
            assert matcher.accept(path[-1])
            masks.append(allowed(matcher))
        assert list(matcher.token_ids) == path
        for _ in range(40):
            matcher.rollback(rng.randint(0, len(matcher.token_ids)))
            at = len(matcher.token_ids)
            assert allowed(matcher) == masks[at]
            fork = matcher.fork()
            again = path[at : at + rng.randint(0, 5)]
            assert matcher.validate_drafts(path[at:]) == len(path) - at
            assert all(map(matcher.accept, again))
            assert allowed(matcher) == masks[at + len(again)]
            assert allowed(fork) == masks[at], "a fork is independent"

    return check


@pytest.fixture(scope="session")
def count_regexes() -> Callable[[Path, GrammarCompiler], dict[str, int]]:
    """How many of the data's patterns are refused, by error; all others must tell its texts apart as it says."""

    def count(folder: Path, compiler: GrammarCompiler) -> dict[str, int]:
        counts = {"right": 0}
        for line in (folder / "regexes.jsonl").read_text("utf-8").rstrip("\n").split("\n"):
            row = json.loads(line)
            try:
                grammar = compiler.compile(Regex(row["regex"]))
            except ConstraintError as error:
                counts[type(error).__name__] = counts.get(type(error).__name__, 0) + 1
                continue
            assert row["valid_pattern"], row["name"]
            for text in row.get("accept", []):
                assert grammar.accepts(text), (row["name"], text)
            for text in row.get("reject", []):
                assert not grammar.accepts(text), (row["name"], text)
            counts["right"] += 1
        return counts

    return count


RESIDENT = """
import ctypes, gc, json

def resident():
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096
"""


@pytest.fixture(scope="session")
def run_weighed() -> Callable[[str], Any]:
    """`run_weighed(program)`: what the program, in a process of its own, prints as JSON. It has `resident()`, bytes."""

    def run(program: str) -> Any:
        command = [sys.executable, "-P", "-c", RESIDENT + program]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run
