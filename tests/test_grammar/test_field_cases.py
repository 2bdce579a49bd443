"""Failures that users of other engines have met, as small inputs with the right behaviour. Named by case."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from drawloom.errors import (
    ConstraintError,
    InvalidConstraint,
    ModelError,
    UnsatisfiableConstraint,
    UnsupportedConstraint,
)
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
)

BYTES = Vocabulary([bytes([value]) for value in range(256)] + [b"", b'a"', b'": '], eos_ids=[256])


def compiled(constraint: Constraint) -> CompiledGrammar:
    return GrammarCompiler(BYTES).compile(constraint)


def take(matcher: GrammarMatcher, data: bytes) -> int:
    """How many leading bytes are allowed, one token each."""
    for count, value in enumerate(data):
        if not matcher.accept(value):
            return count
    return len(data)


def test_d01_escapes_stay_legal_in_a_bounded_string() -> None:
    grammar = compiled(
        JSONSchema(
            {
                "type": "object",
                "properties": {"memo": {"type": "string", "maxLength": 12}},
                "required": ["memo"],
                "additionalProperties": False,
            }
        )
    )
    assert grammar.accepts(r'{"memo": "a \"b\"\nc"}')
    assert grammar.accepts('{"memo": "' + "\\u0061" * 12 + '"}')
    assert grammar.accepts('{"memo": "' + "é" * 12 + '"}')
    for text in ("a" * 13, "\\u0061" * 13, "é" * 13):
        assert not grammar.accepts('{"memo": "' + text + '"}')


def test_d02_pattern_and_length_hold_together() -> None:
    grammar = compiled(JSONSchema({"type": "string", "pattern": "^[0-9a-f]+$", "minLength": 4, "maxLength": 6}))
    assert [grammar.accepts(json.dumps(text)) for text in ("beef", "c0ffee", "abc", "abcdef0", "xyzz")] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_d05_strings_follow_rfc_8259() -> None:
    grammar = compiled(JSONSchema({"type": "object", "properties": {"t": {"type": "string"}}, "required": ["t"]}))
    assert grammar.accepts(r'{"t": "\t\u00e9\"\\"}') and grammar.accepts('{"t": "日本"}')
    for control in [*range(0x20)]:
        assert not grammar.accepts('{"t": "' + chr(control) + '"}'), control
    for text in (r"\x41", r"\u12", r"\u12g4", r"\a", '"', "\\"):
        assert not grammar.accepts('{"t": "' + text + '"}'), text
    for data in (b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\xc0\x80", b"\xf8\x88\x80\x80"):
        matcher = grammar.matcher()
        assert take(matcher, b'{"t": "') == 7
        assert take(matcher, data + b'"}') < len(data) + 2, data


def test_d06_what_has_no_text_is_refused_with_its_path() -> None:
    parts: list[dict[str, Any]] = [{"enum": []}, {"type": "string", "minLength": 5, "maxLength": 2}]
    for part in parts:
        with pytest.raises(UnsatisfiableConstraint) as caught:
            compiled(JSONSchema({"type": "object", "properties": {"x": part}, "required": ["x"]}))
        assert caught.value.path == "$.properties.x"
        optional = {"type": "object", "properties": {"x": part, "y": {"type": "null"}}, "additionalProperties": False}
        grammar = compiled(JSONSchema(optional))
        assert grammar.accepts('{"y": null}') and not grammar.accepts('{"x": "", "y": null}')


def test_d12_a_stop_token_with_text_obeys_the_same_mask() -> None:
    tokens = [bytes([value]) for value in range(256)] + [b"x", b'a"']
    vocabulary = Vocabulary(tokens, eos_ids=[256])
    matcher = GrammarCompiler(vocabulary).compile(JSONSchema({"type": "string"})).matcher()
    assert take(matcher, b'"ab') == 3
    assert not matcher.fork().accept(256)
    assert matcher.accept(ord('"')) and matcher.can_terminate and matcher.accept(256) and matcher.is_terminated


@pytest.mark.parametrize("pattern", ["([", "(?P<", "a{2,1}", "*a"])
def test_d13_a_broken_pattern_is_refused_and_never_dropped(pattern: str) -> None:
    with pytest.raises(InvalidConstraint):
        compiled(Regex(pattern))
    with pytest.raises(InvalidConstraint) as caught:
        compiled(JSONSchema({"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}}))
    assert caught.value.place.startswith("$.properties.a.pattern")


def test_d13_identity_escapes() -> None:
    grammar = compiled(JSONSchema({"type": "string", "pattern": "^done\\!$"}))
    assert grammar.accepts('"done!"') and not grammar.accepts('"done"') and not grammar.accepts('"done\\\\!"')
    assert compiled(Regex(r"^done\!$")).accepts("done!")


def byte_level(extra: dict[str, int]) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: index for index, letter in enumerate(alphabet)} | extra
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("Ġ", "-"), ("Ġ-", "n")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True)])
    return tokenizer


def test_d14_bytes_are_found_by_decoding_not_by_a_class_name(tmp_path: Path) -> None:
    tokenizer = byte_level({"Ġ-": 256, "Ġ-n": 257})
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    for source in (tokenizer, path, str(path)):
        vocabulary = Vocabulary.from_tokenizer(source, eos_ids=[258], size=300)
        assert vocabulary.token_bytes(257) == b" -n" and vocabulary.size == 300
        assert vocabulary.token_bytes(258) == b"" == vocabulary.token_bytes(299)
    schema = {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]}
    matcher = GrammarCompiler(vocabulary).compile(JSONSchema(schema)).matcher()
    ids = tokenizer.encode('{"cmd": "ls -n a"}').ids
    assert 257 in ids and matcher.validate_drafts(ids) == len(ids)


def test_d14_a_tokenizer_whose_bytes_disagree_is_refused() -> None:
    tokenizer = byte_level({"Ġ-": 256, "Ġ-n": 257})
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Replace("-n", "-m")])
    with pytest.raises(ModelError):
        Vocabulary.from_tokenizer(tokenizer, eos_ids=[258])


@pytest.mark.parametrize(
    ("schema", "error"),
    [
        ({"type": "strng"}, InvalidConstraint),
        ({"minLength": -1}, InvalidConstraint),
        ({"type": "string", "x-guidance": {"whitespace_flexible": True}}, UnsupportedConstraint),
        ({"not": {"type": "string"}}, UnsupportedConstraint),
        ({"type": "array", "uniqueItems": True}, UnsupportedConstraint),
        ({"$ref": "https://example.com/other.json"}, ConstraintError),
        (False, UnsatisfiableConstraint),
    ],
)
def test_d35_an_odd_schema_is_refused_by_name(schema: Any, error: type[ConstraintError]) -> None:
    with pytest.raises(error):
        compiled(JSONSchema(schema))


@pytest.mark.parametrize(
    ("options", "keyword"),
    [
        ({"property_order": "any"}, "property_order"),
        ({"numbers": "any"}, "numbers"),
        ({"resources": {"a": {}}}, "resources"),
    ],
)
def test_options_that_come_later_are_refused_by_name(options: dict[str, Any], keyword: str) -> None:
    with pytest.raises(UnsupportedConstraint) as caught:
        compiled(JSONSchema({"type": "integer"}, **options))
    assert caught.value.keyword == keyword


def test_later_parts_of_the_api_are_refused_by_name() -> None:
    grammar = compiled(Choice(["a", "b"]))
    with pytest.raises(UnsupportedConstraint, match="max_tokens"):
        grammar.matcher(max_tokens=4)
    with pytest.raises(UnsupportedConstraint, match="min_completion"):
        _ = grammar.matcher().min_completion
    for text, dialect in (("root ::= a", "auto"), ('start: "a"', "gbnf")):
        with pytest.raises(UnsupportedConstraint):
            compiled(EBNF(text, dialect=dialect))


def test_the_default_whitespace_is_that_of_json_dumps() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "array"}}, "required": ["a"]}
    spaced, compact = compiled(JSONSchema(schema)), compiled(JSONSchema(schema, whitespace="compact"))
    for value in ({"a": 1}, {"a": 1, "b": []}, {"a": 1, "b": [1, {"x": [None, "y"]}], "c": {}}):
        assert spaced.accepts(json.dumps(value))
        assert compact.accepts(json.dumps(value, separators=(",", ":")))
    for text in ('{"a":1}', '{ "a": 1}', '{"a": 1 }', '{"a": 1,"b": []}', '{"a": 1, "b": [ ]}', '{"a": 1}\n'):
        assert not spaced.accepts(text), text


def test_the_suite_accepts_nothing_invalid(data_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Draft 2020-12 of the published test suite: every schema is enforced exactly or refused with a typed error."""
    counts = {"right": 0, "over": 0, "under": 0, "refused": 0}
    compiler = GrammarCompiler(BYTES)
    wrong: list[str] = []
    for file in sorted((data_folder / "json_schema_test_suite" / "tests").rglob("*.json")):
        for group in json.loads(file.read_text("utf-8")):
            try:
                grammar = compiler.compile(JSONSchema(group["schema"]))
            except ConstraintError:
                counts["refused"] += len(group["tests"])
                continue
            for case in group["tests"]:
                found = grammar.accepts(json.dumps(case["data"], ensure_ascii=False))
                kind = "right" if found == case["valid"] else "over" if case["valid"] else "under"
                counts[kind] += 1
                if kind == "under":
                    wrong.append(f"{group['description']}: {case['description']}")
    with capsys.disabled():
        print(f"\nJSON Schema test suite: {counts}")
    assert not wrong and counts["right"] > 400


def test_regexes_are_right_or_refused(
    data_folder: Path,
    count_regexes: Callable[[Path, GrammarCompiler], dict[str, int]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    counts = count_regexes(data_folder, GrammarCompiler(BYTES))
    with capsys.disabled():
        print(f"\nregexes: {counts}")
    assert counts["right"] > 40
