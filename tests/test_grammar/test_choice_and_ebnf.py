"""`Choice` and `EBNF`."""

from collections.abc import Callable

import pytest

from drawloom.errors import InvalidConstraint, UnsatisfiableConstraint, UnsupportedConstraint
from drawloom.grammar import EBNF, Choice, CompiledGrammar, Constraint

Compile = Callable[[Constraint], CompiledGrammar]


@pytest.mark.parametrize(
    "choices",
    [["a", "b"], [""], ["", "a"], ["/", "//", "\n", "\x00", "é", "<|x|>", '"', "\\", "a|b", ".*", "#c", "%json {}"]],
)
def test_exactly_the_choices(choices: list[str], compile_: Compile) -> None:
    compiled = compile_(Choice(choices))
    others = {"", "a", "ab", "aa", " a", "a ", "\\n", "x", "a|b.*"} - set(choices)
    assert all(map(compiled.accepts, choices)) and not any(map(compiled.accepts, others))


@pytest.mark.parametrize("choices", [[], "abc", [1], ["a", None], None, ["\ud800"]])
def test_choices_that_are_none(choices: object) -> None:
    with pytest.raises(InvalidConstraint) as refused:
        Choice(choices)  # type: ignore[arg-type]
    assert refused.value.place.startswith("choices")


def test_choices_compare_by_their_texts() -> None:
    assert Choice(["a", "b", "a"]) == Choice(("a", "b")) and len({Choice(["a"]), Choice(["a"]), Choice(["b"])}) == 2


@pytest.mark.parametrize(
    ("grammar", "accepted", "refused"),
    [
        ('start: "a" | "b"+', ["a", "bb"], ["", "ab"]),
        ('start: e\ne: t ("+" t)*\nt: N | "(" e ")"\nN: /[0-9]+/\n%ignore " "', ["1+ 2", "(1)+(2+3)"], ["1+", "()"]),
        ("?start: A\nA: /[a-z]+/ & ~/foo/", ["fo", "fooo"], ["foo", ""]),
        ('%import common.INT\nstart: INT "//" # "x"\n', ["12//"], ["12"]),
        ('start: "stop=" /max_tokens=[,<>]/ "<a>" // <b>', ["stop=max_tokens=<<a>"], ["stop="]),
        ('start: s\ns: s "a" | "b"', ["b", "baa"], ["a"]),
    ],
)
def test_grammars(grammar: str, accepted: list[str], refused: list[str], compile_: Compile) -> None:
    compiled = compile_(EBNF(grammar))
    assert compiled.report == {"$": "enforced"}
    assert [text for text in (*accepted, *refused) if compiled.accepts(text)] == accepted


def test_a_schema_within_a_grammar_is_lowered_like_any_other(compile_: Compile) -> None:
    grammar = """start: call+
call: "<call>" %json {
  "type": "object", "title": "# <no> // comment",
  "properties": {"name": {"const": "f"}, "day": {"type": "string", "format": "date"}}, "required": ["name"]
} "</call>"
"""
    compiled = compile_(EBNF(grammar))
    assert compiled.accepts('<call>{"name": "f", "day": "2024-02-29"}</call><call>{"name": "f"}</call>')
    for text in ('{"name":"f"}', '{"name": "f", "day": "2023-02-29"}', '{"name": "f", "\\u006eame": 1}'):
        assert not compiled.accepts(f"<call>{text}</call>"), text
    with pytest.raises(InvalidConstraint) as malformed:
        compile_(EBNF('start: "x"\n  %json {"properties": {"a": {"type": "strng"}}}'))
    assert malformed.value.place == "line 2, column 9, $.properties.a.type"
    with pytest.raises(UnsupportedConstraint) as refused:
        compile_(EBNF('start: %json {"not": {}}'))
    assert refused.value.keyword == "not"
    with pytest.raises(UnsatisfiableConstraint):
        compile_(EBNF('start: %json {"$ref": "#"}'))
    with pytest.raises(InvalidConstraint):
        compile_(EBNF('start: %json {"type": '))


@pytest.mark.parametrize(
    ("grammar", "keyword"),
    [
        ('root ::= "a"', "dialect"),
        ('start: "a"\nroot ::= "a"', "dialect"),
        ('start: <|im_end|> "a"', "<|im_end|>"),
        ("start: <[5]>", "<[5]>"),
        ("start: a\na[max_tokens=3]: /a+/", "max_tokens"),
        ('start: a\na[stop="x"]: /a+/', "stop"),
        ('%llguidance {"no_forcing": false}\nstart: "a"', "%llguidance"),
        ('%lark { }\nstart: "a"', "%lark"),
        ("start: /(?=a)b/", "grammar"),
    ],
)
def test_what_a_grammar_may_not_hold(grammar: str, keyword: str, compile_: Compile) -> None:
    with pytest.raises(UnsupportedConstraint) as refused:
        compile_(EBNF(grammar))
    assert refused.value.keyword == keyword


@pytest.mark.parametrize("grammar", ["", 'x: "a"', "start: foo", 'start: "a', "start: (", "start: 'a'", "start: @x"])
def test_malformed_grammars(grammar: str, compile_: Compile) -> None:
    with pytest.raises(InvalidConstraint):
        compile_(EBNF(grammar))


def test_empty_languages_and_dialects(compile_: Compile) -> None:
    with pytest.raises(UnsatisfiableConstraint):
        compile_(EBNF("start: x\nx: y\ny: x"))
    with pytest.raises(UnsupportedConstraint) as refused:
        compile_(EBNF('root ::= "a"', dialect="gbnf"))
    assert refused.value.keyword == "dialect"
    for dialect in ("abnf", "", None):
        with pytest.raises(InvalidConstraint):
            EBNF('start: "a"', dialect=dialect)  # type: ignore[arg-type]
