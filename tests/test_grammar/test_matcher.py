"""The matcher against brute force: every token at every state of random walks."""

import random
from collections.abc import Callable

import numpy as np
import pytest
from llguidance import LLParserLimits

from drawloom.errors import CompileBudgetExceeded, UnsupportedConstraint
from drawloom.grammar import (
    EBNF,
    Choice,
    CompiledGrammar,
    Constraint,
    GrammarCompiler,
    GrammarMatcher,
    JSONSchema,
    Regex,
    Vocabulary,
    fill_bitmasks,
)

Compile = Callable[[Constraint], CompiledGrammar]
Allowed = Callable[[GrammarMatcher], list[int]]
Spell = Callable[[GrammarMatcher, bytes | str], GrammarMatcher]

TREE = {"type": "object", "properties": {"v": {"type": "integer"}, "c": {"type": "array", "items": {"$ref": "#"}}}}
CONSTRAINTS: dict[str, Constraint] = {
    "object": JSONSchema(
        {
            "type": "object",
            "properties": {"ab": {"type": "array", "items": {"type": "number"}}, "c": {"type": "string"}},
            "required": ["ab"],
        }
    ),
    "anything": JSONSchema({}),
    "bounded string": JSONSchema({"type": "string", "minLength": 1, "maxLength": 3}),
    "string with a pattern": JSONSchema({"type": "string", "pattern": "^(ab|é)+$"}),
    "tree": JSONSchema({**TREE, "additionalProperties": False}),
    "compact": JSONSchema({"type": "array", "items": {"enum": [True, "ab", [12]]}}, whitespace="compact"),
    "free whitespace": JSONSchema({"type": "array", "items": {"type": "integer"}}, whitespace=2),
    "regex": Regex(r"(ab|1,)*(é|\n)?"),
    "any text": Regex(r"(?s).*"),
    "one long regex": Regex("[ab]{2,5}c|abcabc"),
    "choice": Choice(["ab", "abc", "abcab", "é€"]),
    "empty choice": Choice(["", "ab"]),
    "lists": EBNF('start: (X "," )* X\nX: /[a-c]+/ | /[0-9]{1,2}/'),
    "arithmetic": EBNF('start: e\ne: t (("+"|"-") t)*\nt: N | "(" e ")"\nN: /[0-9]+/\n%ignore " "'),
    "left recursion": EBNF('start: s\ns: s "a" | "ab"'),
    "schema in lark": EBNF('start: "ab" %json {"type": "object", "properties": {"a": {}}} "\\n"'),
    "lazy": EBNF('start: body "12"\nbody[lazy]: /(?s:.*)ab/'),
    "counted": EBNF('start: a::0x0\na::_ : "ab" a::incr([0:2]) %if lt([0:2], 2) | "1" %if ge([0:2], 1)'),
}


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_a_bit_is_on_exactly_where_accept_is_true(
    name: str, compile_: Compile, walk_masks: Callable[[CompiledGrammar, str, int], int]
) -> None:
    finished = walk_masks(compile_(CONSTRAINTS[name]), name, 24)
    assert finished or name in ("object", "anything", "tree", "string with a pattern")


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_rollback_and_fork_restore_the_state(
    name: str, compile_: Compile, check_rollback: Callable[[GrammarMatcher, str], None]
) -> None:
    check_rollback(compile_(CONSTRAINTS[name]).matcher(), name)


def test_refused_tokens_change_nothing(compile_: Compile, allowed: Allowed) -> None:
    matcher = compile_(Regex("ab+c")).matcher()
    assert matcher.accept(ord("a"))
    before = allowed(matcher)
    for token_id in (ord("z"), -1, 10**9):
        assert not matcher.accept(token_id)
    assert allowed(matcher) == before and list(matcher.token_ids) == [ord("a")]
    assert matcher.validate_drafts([ord("b"), ord("b"), ord("z"), ord("b")]) == 2
    assert matcher.validate_drafts([ord("b"), 10**9]) == 1
    assert matcher.validate_drafts([]) == 0
    with pytest.raises(ValueError, match="2 tokens, 1 were accepted"):
        matcher.rollback(2)


def test_drafts_reach_over_the_end_of_text(compile_: Compile, vocabulary: Vocabulary) -> None:
    end, other, stop = vocabulary.eos_ids
    matcher = compile_(Regex("ab?")).matcher()
    assert matcher.validate_drafts([ord("a"), ord("b"), end, end]) == 3
    assert matcher.validate_drafts([ord("a"), stop, ord("b")]) == 2
    assert matcher.validate_drafts([other]) == 0
    assert matcher.accept(ord("a")) and matcher.accept(other) and matcher.is_terminated
    assert matcher.validate_drafts([ord("b")]) == 0 and not matcher.accept(end)
    matcher.rollback(1)
    assert not matcher.is_terminated and matcher.can_terminate and matcher.accept(ord("b"))
    matcher.rollback(2)
    assert not matcher.can_terminate and list(matcher.token_ids) == []


def test_a_stop_token_with_a_text_ends_and_never_writes(
    compile_: Compile, allowed: Allowed, spell: Spell, vocabulary: Vocabulary
) -> None:
    """A stop token that is given at run time must not be allowed in the middle of a string for its text."""
    stop = vocabulary.eos_ids[2]
    matcher = spell(compile_(JSONSchema({"type": "string"})).matcher(), '"ab')
    assert stop not in allowed(matcher) and not matcher.accept(stop)
    spell(matcher, '"')
    assert allowed(matcher) == sorted(vocabulary.eos_ids) and matcher.accept(stop)


def test_what_is_not_built_yet_is_refused_by_name(compile_: Compile) -> None:
    compiled = compile_(Regex("a"))
    with pytest.raises(UnsupportedConstraint) as refused:
        compiled.matcher(max_tokens=5)
    assert refused.value.keyword == "max_tokens"
    with pytest.raises(UnsupportedConstraint) as refused:
        _ = compiled.matcher().min_completion
    assert refused.value.keyword == "min_completion"


def test_bitmasks_of_another_form_are_refused(compile_: Compile, vocabulary: Vocabulary) -> None:
    matcher = compile_(Regex("a")).matcher()
    words = (vocabulary.size + 31) // 32
    with pytest.raises(TypeError):
        matcher.fill_bitmask(np.zeros((1, words), dtype=np.int64))
    for shape in ((1, words + 1), (1, words - 1), (words,)):
        with pytest.raises(ValueError, match="shape"):
            matcher.fill_bitmask(np.zeros(shape, dtype=np.int32))
    with pytest.raises(ValueError, match="contiguous"):
        matcher.fill_bitmask(np.zeros((2, 2 * words), dtype=np.int32)[:, ::2])
    with pytest.raises(IndexError):
        matcher.fill_bitmask(np.zeros((2, words), dtype=np.int32), 2)


def test_many_rows_equal_single_rows(compile_: Compile, spell: Spell, vocabulary: Vocabulary) -> None:
    words = (vocabulary.size + 31) // 32
    matchers = [compile_(constraint).matcher() for constraint in CONSTRAINTS.values()]
    done = spell(compile_(Regex("a")).matcher(), "a")
    assert done.accept(vocabulary.eos_ids[0])
    matchers.append(done)
    together = np.full((len(matchers) + 1, words), -1, dtype=np.int32)
    alone = together.copy()
    order = list(range(len(matchers)))
    random.Random(0).shuffle(order)
    assert fill_bitmasks([(matchers[row], row) for row in order], together) == {}
    for row, matcher in enumerate(matchers):
        matcher.fill_bitmask(alone, row)
    assert np.array_equal(together, alone)
    assert (together[-1] == -1).all() and not together[-2].any()


def test_a_matcher_that_fails_harms_no_other(vocabulary: Vocabulary, spell: Spell) -> None:
    """An engine that gives up still answers a row with the end of text; that must never be taken for a mask."""
    compiler = GrammarCompiler(vocabulary)
    compiler._engine._limits = LLParserLimits(max_items_in_row=30, verbose_errors=False)  # type: ignore[attr-defined]
    many = {"type": "object", "properties": {f"p{i}": {} for i in range(100)}, "additionalProperties": False}
    wide, narrow = compiler.compile(JSONSchema(many)), compiler.compile(Regex("ab"))
    words = (vocabulary.size + 31) // 32
    bitmask = np.full((3, words), -1, dtype=np.int32)
    healthy, failing = spell(narrow.matcher(), "a"), wide.matcher()
    with pytest.raises(CompileBudgetExceeded, match="limit"):
        spell(failing, '{"p1": 1')
    with pytest.raises(CompileBudgetExceeded, match="limit"):
        failing.fill_bitmask(bitmask, 0)
    assert not bitmask[0].any() and (bitmask[1:] == -1).all()
    errors = fill_bitmasks([(failing, 2), (healthy, 1)], bitmask)
    assert set(errors) == {0} and isinstance(errors[0], CompileBudgetExceeded)
    assert not bitmask[2].any() and bitmask[1].any()
    with pytest.raises(CompileBudgetExceeded, match="limit"):
        wide.accepts('{"p1": 1}')
