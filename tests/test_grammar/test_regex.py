"""`Regex` against Python's own :mod:`re`, and the edges of the syntax."""

import random
import re
import warnings
from collections.abc import Callable

import pytest

from drawloom.errors import InvalidConstraint, UnsatisfiableConstraint, UnsupportedConstraint
from drawloom.grammar import CompiledGrammar, Constraint, JSONSchema, Regex

Compile = Callable[[Constraint], CompiledGrammar]

# fmt: off
PIECES = [
    *"aabbc1_-.^$|()[]{}*+?\\/ ,:&~#", "\\d", "\\w", "\\s", "\\D", "\\W", "\\S", "\\b", "\\n", "\\.", "\\-", "\\_",
    "\\!",
    "\\x61", "\\u0061", "\\0", "\\1", "(?:", "(?i)", "(?s)", "(?i:", "(?=", "(?P<n>", "[^", "[a-c]", "[\\w-]", "[\\d.]",
    "{2}", "{1,3}", "{,2}", "{2,}", "a|b", "^a", "b$", ".*", ".+?", "a*", "é", "\\A", "\\Z", "&&", "--", "[]a]", "\n",
    "(?#x)", "*+", "(?>", "(?x)", "(?a)",
]
TEXTS = [
    "", "a", "b", "ab", "abc", "aa", "A", "B", "1", "_", "-", ".", "a\n", "\n", "a\nb", "é", "É", "/", "!", " ", "\t",
    "aab", "abab", "c", "K", "k", "s", "\x00", "{2}", "a{2}", "]", "[", "^", "$", "\\", "1a", "a1", "&", "日", "b\n",
    "\u2028", "\r", "\x85", "aaaa", "bbb", "ac", "a-b", "#", "a b",
]
# fmt: on


def random_patterns(count: int) -> list[str]:
    rng = random.Random(7)
    return ["".join(rng.choice(PIECES) for _ in range(rng.randint(1, 7))) for _ in range(count)]


def test_random_patterns_mean_what_python_says(compile_: Compile) -> None:
    compared = 0
    for pattern in random_patterns(1_500):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                truth = re.compile(pattern)
        except re.error:
            truth = None
        try:
            compiled = compile_(Regex(pattern))
        except UnsatisfiableConstraint:
            assert truth is None or not any(map(truth.fullmatch, TEXTS)), pattern
            continue
        except (InvalidConstraint, UnsupportedConstraint):
            continue
        if truth is None:  # what the regex module alone takes: a dash beside a class, a group name given twice, ...
            continue
        compared += 1
        for text in TEXTS:
            assert compiled.accepts(text) == bool(truth.fullmatch(text)), (pattern, text)
    assert compared > 300


@pytest.mark.parametrize(
    "pattern",
    "( ) a) (a [a [z-a] a{5,2} *a a** a{2}{3} a|* (?i (?P<1>a) (?P<a>b)(?P<a>c)".split()
    + "\\ \\y \\x4 \\u12 \\x{42} [\\8]".split(),
)
def test_malformed_patterns_are_invalid_with_their_position(pattern: str, compile_: Compile) -> None:
    with pytest.raises(re.error), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        re.compile(pattern)
    with pytest.raises(InvalidConstraint) as refused:
        compile_(Regex(pattern))
    assert refused.value.place.startswith("position ")


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("(?=a)b", "lookahead"),
        ("(?!a)b", "negative lookahead"),
        ("b(?<=a)", "lookbehind"),
        ("b(?<!a)", "negative lookbehind"),
        (r"(a)\1", "backreference"),
        ("(?P<q>a)(?P=q)", "backreference"),
        (r"\bfoo", "word boundary"),
        (r"a\Bb", "word boundary"),
        ("(?>a|ab)c", "atomic group"),
        ("a*+b", "possessive quantifier"),
        ("(a)?(?(1)b|c)", "conditional group"),
        ("(?m)^a$", "inline flag 'm'"),
        ("(?x)a", "inline flag 'x'"),
        ("a(?i)b", "inline flags after the start of the pattern"),
        ("a^b", "^"),
        ("a$b", "$"),
        ("(a$)*", "$"),
        (r"a$\n", "$"),
        ("[[:alpha:]]", "a POSIX class"),
        (r"\p{Nonsense}", r"\p{Nonsense}"),
        (r"(?i)\p{Lu}", "a property class under IGNORECASE"),
        ("a{e}", "fuzzy matching"),
    ],
)
def test_what_has_no_automaton_is_refused_by_name(pattern: str, name: str, compile_: Compile) -> None:
    with pytest.raises(UnsupportedConstraint) as refused:
        compile_(Regex(pattern))
    assert refused.value.keyword == name


def test_flags(compile_: Compile) -> None:
    folded = compile_(Regex("straße|éa|[i-k]x", re.IGNORECASE))
    for text in ("STRAßE", "ÉA", "KX", "ıx", "\u0130x", "\u212ax", "straẞe"):
        truth = bool(re.fullmatch("straße|éa|[i-k]x", text, re.IGNORECASE))
        assert folded.accepts(text) == truth or text == "ıx", text  # re alone folds the dotless i, regex doesn't
    assert compile_(Regex("a.b", re.DOTALL)).accepts("a\nb") and not compile_(Regex("a.b")).accepts("a\nb")
    assert compile_(Regex("(?i:a)b")).accepts("Ab") and not compile_(Regex("(?i:a)b")).accepts("AB")
    assert compile_(Regex("(?is)a.")).accepts("A\n")
    assert Regex("a", re.UNICODE) == Regex("a") and hash(Regex("a", re.I)) == hash(Regex("a", 2))
    for flags in (re.MULTILINE, re.VERBOSE, re.ASCII, re.IGNORECASE | re.MULTILINE):
        with pytest.raises(UnsupportedConstraint) as refused:
            compile_(Regex("a", flags))
        assert refused.value.keyword == "flags"
    for wrong in ("i", None, True, 1.0):
        with pytest.raises(InvalidConstraint):
            Regex("a", wrong)  # type: ignore[arg-type]


def test_anchors_at_the_edges_and_the_empty_pattern(compile_: Compile) -> None:
    for pattern in ("^[a-z]+$", r"\A[a-z]+\Z", "(^a|b)c", "a$|b", "^(?:a|b)$", "(^a$)", "^^a", ""):
        truth = re.compile(pattern)
        for text in TEXTS:
            assert compile_(Regex(pattern)).accepts(text) == bool(truth.fullmatch(text)), (pattern, text)


def test_large_repeats_and_many_alternatives(compile_: Compile) -> None:
    assert compile_(Regex("a{1,1000000}")).accepts("a" * 10_000)
    assert compile_(Regex("x{500}")).accepts("x" * 500) and not compile_(Regex("x{500}")).accepts("x" * 501)
    words = compile_(Regex("|".join(f"word{i:04}" for i in range(3_000))))
    assert words.accepts("word2999") and not words.accepts("word3000")


def test_bytes_that_are_no_text_match_nothing(compile_: Compile) -> None:
    matcher = compile_(Regex("(?s).*")).matcher()
    for value in (0x80, 0xC0, 0xF5, 0xFF):
        assert not matcher.accept(value)
    assert not compile_(Regex("(?s).*")).accepts("\ud800")
    with pytest.raises(InvalidConstraint):
        Regex("\ud800")


# JSON Schema's patterns are ECMA-262's, searched for anywhere in the string.


@pytest.mark.parametrize(
    ("pattern", "accepted", "refused"),
    [
        ("b", ["b", "abc", "\nb"], ["", "ac"]),
        ("^a", ["a", "ab"], ["ba"]),
        ("a$", ["a", "ba"], ["ab", "a\n"]),
        ("^a|b$", ["ax", "xb"], ["xa", "bx"]),
        ("^(?:a|b)$", ["a", "b"], ["ab"]),
        ("^\\d\\w$", ["1a", "1_"], ["١a", "1é"]),
        ("^\\s$", [" ", "\ufeff", "\u2028"], ["\x85", "\x1c", "x"]),
        ("^.$", ["é"], ["\n", "\u2028", "\r"]),
        ("^[\\w-.]$", ["-", ".", "a"], ["x-", "é"]),
        ("^\\/\\-\\_\\!$", ["/-_!"], ["\\/"]),
        ("^\\u{1F600}\\cJ$", ["😀\n"], ["😀"]),
        ("^{a}$", ["{a}"], ["a"]),
        ("", ["", "x"], []),
    ],
)
def test_patterns_of_schemas(pattern: str, accepted: list[str], refused: list[str], compile_: Compile) -> None:
    import json

    compiled = compile_(JSONSchema({"type": "string", "pattern": pattern}))
    for text in (*accepted, *refused):
        assert compiled.accepts(json.dumps(text, ensure_ascii=False)) == (text in accepted), text


@pytest.mark.parametrize("pattern", ["(?i)a", "[]a]", "[^]", "\\Aa", "\\1", "\\ba", "(?=a)", "a^b", "(a|^b)c"])
def test_patterns_that_readers_take_differently_are_refused(pattern: str, compile_: Compile) -> None:
    with pytest.raises(UnsupportedConstraint) as refused:
        compile_(JSONSchema({"properties": {"x": {"pattern": pattern}}}))
    assert refused.value.path.startswith("$.properties.x")
