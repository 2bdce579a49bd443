"""Forced text is tokenised as the tokenizer would, and never up to a token that later text could change."""

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from drawloom.grammar import CompiledGrammar, GrammarCompiler, JSONSchema, Regex, Vocabulary

WORDS = "vendor total currency description quantity measurement unit price tax shipping address invoice number".split()
CORPUS = [
    json.dumps({word: [word + "s", f"{word} {other}"], other: i}) for i, word in enumerate(WORDS) for other in WORDS
]
CORPUS += [" ".join(WORDS), "It's a naïve café; they'll pay 12,345.67 €.\n\n", "The vendor's total\tquantity"]


def trained(split: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split == "gpt2")
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level]) if split == "gpt2" else byte_level
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|im_end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


@pytest.fixture(scope="module", params=["gpt2", "none"])
def compiler(request: pytest.FixtureRequest) -> Iterator[GrammarCompiler]:
    """With a split into words before the merges, and with merges over the whole text."""
    yield GrammarCompiler(Vocabulary.from_tokenizer(trained(request.param)))


def schema(rng: random.Random) -> dict[str, Any]:
    kinds: list[Any] = [
        {"type": "string", "maxLength": 12},
        {"type": "integer"},
        {"enum": rng.sample(WORDS, 3)},
        {"const": {"unit price": ["tax", rng.randint(0, 99)]}},
        {"type": "boolean"},
    ]
    names = rng.sample(WORDS, 4)
    properties = {name: rng.choice(kinds) for name in names}
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def example(node: dict[str, Any], rng: random.Random) -> Any:
    if "properties" in node:
        return {name: example(part, rng) for name, part in node["properties"].items()}
    if "const" in node:
        return node["const"]
    if "enum" in node:
        return rng.choice(node["enum"])
    kind = node["type"]
    return rng.randint(-99, 9999) if kind == "integer" else rng.random() < 0.5 if kind == "boolean" else text(rng)


def text(rng: random.Random) -> str:
    return "".join(rng.choice([*"asA1 \n\"',.:_-}]\\é日", "ount", "ing", "'s", "  "]) for _ in range(rng.randint(0, 6)))


def test_forced_ids_are_those_of_the_whole_text(compiler: GrammarCompiler) -> None:
    rng = random.Random(3)
    proposed = positions = 0
    for _ in range(60):
        constraint = schema(rng)
        compiled = compiler.compile(JSONSchema(constraint))
        for _ in range(3):
            ids = compiler.vocabulary.encode(json.dumps(example(constraint, rng), ensure_ascii=False))
            matcher = compiled.matcher()
            for index, token_id in enumerate(ids):
                forced = matcher.forced_ids(64)
                assert forced == ids[index : index + len(forced)], compiler.vocabulary.tokens[token_id]
                assert matcher.validate_drafts(forced) == len(forced)
                assert matcher.forced_ids(1) == forced[:1] and matcher.forced_ids(0) == []
                proposed += len(forced) > 0
                positions += 1
                assert matcher.accept(token_id)
            assert matcher.can_terminate
    assert proposed > positions / 10


def test_a_tail_that_may_merge_is_withheld_and_the_end_is_not(compiler: GrammarCompiler) -> None:
    vocabulary = compiler.vocabulary

    def spelled(compiled: CompiledGrammar) -> bytes:
        return b"".join(map(vocabulary.token_bytes, compiled.matcher().forced_ids(64)))

    assert spelled(compiler.compile(Regex("vendor total"))) == b"vendor total", "nothing follows: all of it is settled"
    for tail in ("[a-z]*", "'s|", "( |\n)*", "(ount)?"):
        found = spelled(compiler.compile(Regex(f"vendor tot(?:{tail})")))
        assert b"vendor tot".startswith(found) and len(found) < len("vendor tot")
    done = compiler.compile(Regex("ab")).matcher()
    assert all(map(done.accept, vocabulary.encode("ab"))) and done.forced_ids(8) == []
    assert done.accept(vocabulary.eos_ids[0]) and done.forced_ids(8) == []


def test_forced_text_goes_on_from_any_cut(compiler: GrammarCompiler) -> None:
    """Behind tokens that the tokenizer would not have chosen, what follows is tokenised on its own."""
    vocabulary = compiler.vocabulary
    compiled = compiler.compile(Regex("naïve vendor total"))
    single = {token: token_id for token_id, token in enumerate(vocabulary.tokens) if len(token) == 1}
    matcher = compiled.matcher()
    for count, value in enumerate("naïve vend".encode()):
        forced = matcher.forced_ids(64)
        written = b"".join(map(vocabulary.token_bytes, forced))
        assert "naïve vendor total".encode()[count:].startswith(written)
        assert matcher.validate_drafts(forced) == len(forced)
        assert matcher.accept(single[bytes([value])])
    assert b"".join(map(vocabulary.token_bytes, matcher.forced_ids(64))) == b"or total"


def test_special_names_in_forced_text_are_spelled_out(compiler: GrammarCompiler) -> None:
    vocabulary = compiler.vocabulary
    forced = compiler.compile(Regex(r"a<\|im_end\|>b")).matcher().forced_ids(64)
    assert b"".join(map(vocabulary.token_bytes, forced)) == b"a<|im_end|>b"
    assert vocabulary.special_ids.isdisjoint(forced)


def test_without_a_tokenizer_nothing_is_proposed() -> None:
    vocabulary = Vocabulary([bytes([value]) for value in range(256)] + [b""], eos_ids=[256])
    assert GrammarCompiler(vocabulary).compile(Regex("abc")).matcher().forced_ids(8) == []
