"""A vocabulary small enough to try every token at every state: all bytes, some longer tokens, two ends of text, a stop
token that also has a text, and ids without bytes."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from drawloom.grammar import CompiledGrammar, Constraint, GrammarCompiler, GrammarMatcher, Vocabulary

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
