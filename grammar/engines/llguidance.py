"""llguidance: derivatives of regular expressions and an Earley parser over a trie of the tokens."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence

from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from ...errors import CompileBudgetExceeded, DrawloomError, EngineError
from ..engine import Bitmask, EngineRefusal, GrammarSource
from ..vocabulary import Vocabulary

__all__ = ["LLGuidanceEngine"]

# Forcing bars every tokenisation of forced text but one; here masks hold every token that the grammar allows.
# Behind the grammar, so that the lines in messages are those of the grammar.
_OPTIONS = '\n%llguidance {"no_forcing": true}\n'

# Measured as growth of resident memory, by compiling and by matching texts: 55 to 870 KiB for grammars of 50 to 3,200
# bytes. The engine doesn't tell; a lexer of long bounded strings may grow by some 2 MiB in use.
_BYTES_PER_GRAMMAR = 1 << 16
_BYTES_PER_BYTE = 256

_BUDGET = re.compile(
    r"fuel|too (?:many|large|complex|deep)|limit|max is|TooComplex|Unable to determine|symbols\.len\(\)"
)


def _refusal(message: str) -> EngineRefusal:
    head = _head(message)
    if "Unsatisfiable schema" in head:
        return EngineRefusal("unsatisfiable", head)
    return EngineRefusal("budget" if _BUDGET.search(head) else "unsupported", head)


def _head(message: str) -> str:
    """The message without the engine's state and the grammar's text, which follow."""
    head = re.split(r"\n<(?:state|non-verbose)|\n +1 \|", message)[0].strip()
    return re.sub(r"^at \d+\(\d+\): failed to compile JSON schema: ", "", head)[:500]


class _Tokens(TokenizerWrapper):
    """What LLTokenizer reads a vocabulary from. Forced text is tokenised by Drawloom, so there is no encoder."""

    def __init__(self, tokens: list[bytes], end_id: int) -> None:
        self.is_tokenizer_wrapper = True
        self.bos_token_id = None
        self.tokens = tokens
        self.eos_token_id = end_id
        self.special_token_ids = [index for index, token in enumerate(tokens) if not token]

    def __call__(self, text: str) -> list[int]:
        raise NotImplementedError("the engine has no reason to encode text")


def _byte_tokenizer() -> LLTokenizer:
    return LLTokenizer(_Tokens([bytes([value]) for value in range(256)] + [b""], 256), slices=[])


class LLGuidanceEngine:
    """`GrammarEngine` over llguidance."""

    name = "llguidance"

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        tokens = list(vocabulary.tokens)
        self._tokenizer = LLTokenizer(_Tokens(tokens, vocabulary.eos_ids[0]), eos_token=list(vocabulary.eos_ids))
        self._bytes = _byte_tokenizer()
        self._executor = LLExecutor(1)
        # Objects of a thousand optional properties need 4,000 items in a row of the parser; the default is 2,000.
        self._limits = LLParserLimits(max_items_in_row=8_000, verbose_errors=False)
        self._words = (vocabulary.size + 31) // 32

    def compile(self, source: GrammarSource) -> _Grammar:
        grammar = _Grammar(self._new, source.lark)
        grammar.check_start()
        return grammar

    def _new(self, lark: str, whole_bytes: bool) -> LLMatcher:
        tokenizer = self._bytes if whole_bytes else self._tokenizer
        matcher = LLMatcher(tokenizer, lark + _OPTIONS, log_level=0, limits=self._limits)
        if matcher.is_error():
            raise _refusal(matcher.get_error())
        return matcher

    def probe(self, lark: str) -> EngineRefusal | None:
        message = LLMatcher.validate_grammar(lark + _OPTIONS, limits=self._limits)
        return _refusal(message) if message and not message.startswith("WARNING") else None

    def fill_batch(self, matchers: Sequence[tuple[_Matcher, int]], bitmask: Bitmask) -> dict[int, DrawloomError]:
        self._executor.unsafe_compute_mask_ptr(
            [(matcher.inner, row) for matcher, row in matchers], bitmask.ctypes.data, self._words * 4, len(bitmask)
        )
        errors = {}
        for index, (matcher, row) in enumerate(matchers):
            if matcher.inner.is_error():
                bitmask[row] = 0
                errors[index] = matcher.failure()
        return errors


class _Grammar:
    def __init__(self, new: Callable[[str, bool], LLMatcher], lark: str) -> None:
        self._new = new
        self._lark = lark
        self._lock = threading.Lock()
        self._prototype: LLMatcher | None = new(lark, False)
        self._byte_prototype: LLMatcher | None = None

    @property
    def num_bytes(self) -> int:
        return _BYTES_PER_GRAMMAR + _BYTES_PER_BYTE * len(self._lark)

    def check_start(self) -> None:
        assert self._prototype is not None
        first = self._prototype.deep_copy()
        mask = first.compute_bitmask()
        if first.is_error():
            refusal = _refusal(first.get_error())
            empty = first.stop_reason() not in ("LexerTooComplex", "ParserTooComplex")
            raise EngineRefusal("unsatisfiable", "no text begins this") if empty else refusal
        if not any(mask):
            raise EngineRefusal("unsatisfiable", "no token of the vocabulary begins a text of this")

    def matcher(self) -> _Matcher:
        with self._lock:
            if self._prototype is None:
                self._prototype = self._new(self._lark, False)
            return _Matcher(self._prototype.deep_copy(), self.renew)

    def renew(self) -> None:
        """A matcher went over a limit. Copies share their lexer's states: later matchers begin with an empty one."""
        with self._lock:
            self._prototype = None

    def matches(self, data: bytes) -> bool:
        with self._lock:
            if self._byte_prototype is None:
                self._byte_prototype = self._new(self._lark, True)
            matcher = self._byte_prototype.deep_copy()
        taken = matcher.try_consume_tokens(list(data))
        found = taken == len(data) and matcher.is_accepting()
        if matcher.is_error():
            with self._lock:
                self._byte_prototype = None
            raise _failure(matcher)
        return found


def _failure(matcher: LLMatcher) -> DrawloomError:
    message = _head(matcher.get_error())
    if matcher.stop_reason() in ("LexerTooComplex", "ParserTooComplex") or _BUDGET.search(message):
        return CompileBudgetExceeded("mask", f"the grammar passed a limit of llguidance while matching: {message}")
    return EngineError(f"llguidance is stuck in this grammar: {message}")


class _Matcher:
    def __init__(self, inner: LLMatcher, renew: Callable[[], None]) -> None:
        self.inner = inner
        self._renew = renew

    def failure(self) -> DrawloomError:
        self._renew()
        return _failure(self.inner)

    def _check(self) -> None:
        if self.inner.is_error():
            raise self.failure()

    def fill(self, row: Bitmask) -> None:
        self.inner.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        if self.inner.is_error():
            row[:] = 0
            raise self.failure()

    def allows(self, token_ids: Sequence[int]) -> int:
        found = self.inner.validate_tokens(list(token_ids))
        self._check()
        return found

    def advance(self, token_ids: Sequence[int]) -> None:
        self.inner.consume_tokens(list(token_ids))
        self._check()

    def rollback(self, count: int) -> None:
        self.inner.rollback(count)
        self._check()

    def fork(self) -> _Matcher:
        return _Matcher(self.inner.deep_copy(), self._renew)

    def can_end(self) -> bool:
        return self.inner.is_accepting()

    def must_end(self) -> bool:
        return self.inner.is_stopped() and self.inner.is_accepting()

    def forced_bytes(self) -> bytes:
        found = self.inner.compute_ff_bytes()
        self._check()
        return found
