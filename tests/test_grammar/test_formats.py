"""Formats: known texts, and random texts of each pattern held against a validator."""

import json
import random
from collections.abc import Callable
from typing import Any

import jsonschema_rs
import pytest

from drawloom.errors import UnsupportedConstraint
from drawloom.grammar import CompiledGrammar, Constraint, GrammarMatcher, JSONSchema
from drawloom.grammar.formats import ASSERTED_FORMATS

Compile = Callable[[Constraint], CompiledGrammar]

# fmt: off
TEXTS: dict[str, tuple[list[str], list[str]]] = {
    "date": (
        ["2024-02-29", "2000-02-29", "1999-12-31", "0000-01-01"],
        ["2023-02-29", "1900-02-29", "2024-13-01", "2024-04-31", "2024-2-1", "24-02-01", "2024-02-29 ", "２024-02-29"],
    ),
    "time": (
        ["00:00:00Z", "23:59:59.123456+23:59", "12:00:00z", "12:00:00-00:30"],
        ["24:00:00Z", "12:60:00Z", "12:00:00", "12:00Z", "12:00:00+24:00", "12:00:00.Z", "23:59:60Z"],
    ),
    "date-time": (
        ["2024-02-29T12:00:00Z", "1985-04-12t23:20:50.52z"],
        ["2023-02-29T12:00:00Z", "2024-02-29 12:00:00Z", "2024-02-29"],
    ),
    "duration": (["P1Y2M3DT4H5M6S", "PT1S", "P2W", "P1M"], ["P", "PT", "1Y", "P1Y2W", "PT1D", "P1S", "P-1Y", "P1YT"]),
    "email": (
        ["a@b.org", "x.y+z@sub.example.com", "a@b"],
        ["a@", "@b", "a..b@c", ".a@b", "a@b..c", "a b@c", "a@-b", "a@b@c"],
    ),
    "hostname": (
        ["a", "a-b.example", "1.2.3", "a" * 63],
        ["", "-a", "a-", "a_b", "a..b", "a" * 64, ".a", "a.", "ab--c"],
    ),
    "ipv4": (["0.0.0.0", "255.249.199.99"], ["256.0.0.0", "1.2.3", "01.2.3.4", "1.2.3.4.5", "1.2.3.4 "]),
    "ipv6": (
        ["::", "::1", "1::", "1:2:3:4:5:6:7:8", "fe80::a:b", "::ffff:1.2.3.4", "1:2:3:4:5:6:1.2.3.4",
         "1:2:3:4:5:6:7::"],
        [":", ":::", "1:2", "1::2::3", "12345::", "1:2:3:4:5:6:7:8:9", "::1.2.3", "g::",
         "1:2:3:4:5:6:7:1.2.3.4", "::1%e"],
    ),
    "uri": (
        ["http://a.b/c?d=e#f", "urn:isbn:1", "mailto:a@b.c", "file:///x", "http://[::1]:80/", "a:", "http://u:p@h/%41"],
        ["//a/b", "a/b", "http://a b", "http://a/%4", ":a", "1a:b", "http://[::1", "http://a/{x}", "http://é/"],
    ),
    "uri-reference": (["", "a/b", "//h/p", "?q", "#f", "http://a"], ["a b", "\\", "%", "#a#b", "é"]),
    "iri": (["http://é.org/日本?x=ü"], ["é", "http://a b"]),
    "iri-reference": (["é/日", "#ä", ""], ["a b", "é\\"]),
    "uri-template": (["http://a/{b}", "{+x,y*}{?z:3}", "x"], ["{", "{}", "{a b}", "}", "{!x}", "a b"]),
    "uuid": (
        ["2eb8aa08-AA98-11ea-b4aa-73b441d16380"],
        ["2eb8aa08aa9811eab4aa73b441d16380", "2eb8aa08-aa98-11ea-b4aa-73b441d1638"],
    ),
    "json-pointer": (["", "/", "/a~0b~1/0"], ["a", "/~", "/~2", "#/a"]),
    "relative-json-pointer": (["0", "1/a", "10#"], ["", "/a", "01", "-1", "0##", "1a"]),
}
# Which bytes a random walk prefers, so that it goes where the format is intricate.
FAVOURITES = {
    "email": b"a.@-+b1", "hostname": b"a-0.", "ipv6": b":0a1.",
    "uri": b"h:/?#[]@a%0.v1", "iri": b"h:/?#[]@a%0.\xc3\xa9",
    "uri-reference": b"h:/?#[]@a%0.v1", "iri-reference": b"h:/?#[]@a%0\xc3\xa9.", "uri-template": b"{}a,:*.%0/",
    "duration": b"PT1YMDHS", "json-pointer": b"/~01a", "relative-json-pointer": b"0#/~1a",
}
# fmt: on


def test_every_format_has_texts() -> None:
    assert set(TEXTS) == set(ASSERTED_FORMATS)


@pytest.mark.parametrize("name", TEXTS)
def test_known_texts(name: str, compile_: Compile) -> None:
    compiled = compile_(JSONSchema({"type": "string", "format": name}))
    assert compiled.report["$.format"] == "enforced"
    right, wrong = TEXTS[name]
    for text in (*right, *wrong):
        assert compiled.accepts(json.dumps(text, ensure_ascii=False)) == (text in right), text


@pytest.mark.parametrize("name", TEXTS)
def test_random_texts_have_the_format(
    name: str, compile_: Compile, allowed: Callable[[GrammarMatcher], list[int]]
) -> None:
    schema: dict[str, Any] = {"type": "string", "format": name}
    truth = jsonschema_rs.validator_for(schema, validate_formats=True)
    compiled = compile_(JSONSchema(schema))
    rng = random.Random(name)
    finished = 0
    for _ in range(80):
        matcher, text = compiled.matcher(), b""
        while not matcher.can_terminate and len(text) < 90:
            choices = [token_id for token_id in allowed(matcher) if token_id < 256]
            liked = [token_id for token_id in choices if token_id in FAVOURITES.get(name, b"")]
            close = ord('"') in choices and len(text) > 2 and rng.random() < 0.15
            token_id = ord('"') if close else rng.choice(liked if liked and rng.random() < 0.8 else choices)
            assert matcher.accept(token_id)
            text += bytes([token_id])
        if matcher.can_terminate:
            finished += 1
            assert truth.is_valid(json.loads(text)), text
    assert finished > 20


def test_formats_beside_other_assertions(compile_: Compile) -> None:
    compiled = compile_(JSONSchema({"type": "string", "format": "date", "pattern": "^2024", "maxLength": 10}))
    assert compiled.accepts('"2024-01-01"') and not compiled.accepts('"2023-01-01"')
    both = compile_(JSONSchema({"format": "hostname", "allOf": [{"maxLength": 2}], "type": "string"}))
    assert both.accepts('"ab"') and not both.accepts('"abc"') and not both.accepts('"a-"')
    untyped = compile_(JSONSchema({"format": "email"}))
    assert untyped.accepts("1") and untyped.accepts('"a@b"') and not untyped.accepts('"a"')


def test_formats_that_cannot_be_asserted(compile_: Compile) -> None:
    for name in ("regex", "idn-hostname", "password", "unknown", "int32"):
        schema = {"properties": {"a": {"format": name}}}
        assert compile_(JSONSchema(schema)).report["$.properties.a.format"] == "annotation"
        with pytest.raises(UnsupportedConstraint) as refused:
            compile_(JSONSchema(schema, formats="refuse"))
        assert (refused.value.path, refused.value.keyword) == ("$.properties.a", "format")
    assert compile_(JSONSchema({"format": "date"}, formats="refuse")).accepts("1")
