"""The bytes of tokens, decided by decoding."""

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from drawloom.errors import ModelError
from drawloom.grammar import GrammarCompiler, JSONSchema, Regex, Vocabulary

TEXTS = ['The quick brown fox; naïve café 日本語 😀 12,345.\n\n\tIt\'s {"a": [1, 2]} -n <x>', "Ġ▁ odd letters Ċ"]


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def sentencepiece() -> Tokenizer:
    """As in Llama 2: a space is ▁, bytes that have no piece fall back to <0xNN>, the first space is dropped."""
    letters = sorted({letter for text in TEXTS[:1] for letter in text.replace(" ", "▁") if letter.isascii()} | {"▁"})
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{value:02X}>" for value in range(256)), *letters, "▁t", "he", "▁the", "é"]
    vocab = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he")]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in ("<unk>", "<s>", "</s>")])
    return tokenizer


def characters() -> Tokenizer:
    """Text as it is, one token a word or letter; a token may look like those of other styles."""
    names = ["[EOS]", *"abc ", "Ġx", "▁y", "é", "日", "<0x41>", "\n"]
    tokenizer = Tokenizer(models.WordLevel({name: index for index, name in enumerate(names)}, unk_token="[EOS]"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken("[EOS]", special=True)])
    return tokenizer


def ids_of(tokenizer: Tokenizer) -> Iterator[int]:
    yield from range(tokenizer.get_vocab_size(with_added_tokens=True))


def test_byte_level_tokens() -> None:
    tokenizer = byte_level()
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    assert vocabulary.size == tokenizer.get_vocab_size() and vocabulary.special_ids == {0, 1, 2}
    assert {vocabulary.token_bytes(i) for i in ids_of(tokenizer)} >= {bytes([value]) for value in range(256)}
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        assert b"".join(map(vocabulary.token_bytes, ids)) == text.encode()
        assert any(len(vocabulary.token_bytes(token_id)) > 1 for token_id in ids)


def test_sentencepiece_tokens() -> None:
    tokenizer = sentencepiece()
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    assert vocabulary.eos_ids == (2,)
    by_name = tokenizer.get_vocab()
    for name, token in {"▁the": b" the", "▁": b" ", "<0xE6>": b"\xe6", "<0x41>": b"A", "é": b"\xc3\xa9"}.items():
        assert vocabulary.token_bytes(by_name[name]) == token
    for name in ("<unk>", "<s>", "</s>"):
        assert vocabulary.token_bytes(by_name[name]) == b""
    ids = tokenizer.encode("the 日").ids
    assert b"".join(map(vocabulary.token_bytes, ids)) == " the 日".encode()


def test_plain_tokens() -> None:
    vocabulary = Vocabulary.from_tokenizer(characters())
    assert [vocabulary.token_bytes(i).decode() for i in range(5, 10)] == ["Ġx", "▁y", "é", "日", "<0x41>"]
    assert vocabulary.eos_ids == (0,)


def test_decoding_decides_and_not_the_look_of_names() -> None:
    """Names that fit the byte alphabet, in a tokenizer that doesn't decode them so."""
    names = {name: index for index, name in enumerate(["a", "b", "Ġa", "é", "</s>"])}
    tokenizer = Tokenizer(models.WordLevel(names, unk_token="a"))
    tokenizer.decoder = decoders.Fuse()
    assert Vocabulary.from_tokenizer(tokenizer, eos_ids=4).token_bytes(2) == "Ġa".encode()
    tokenizer.decoder = decoders.ByteLevel()
    assert Vocabulary.from_tokenizer(tokenizer, eos_ids=4).token_bytes(2) == b" a"
    assert Vocabulary.from_tokenizer(tokenizer, eos_ids=4).token_bytes(3) == b"\xe9"


def test_bytes_that_disagree_with_decoding_are_refused() -> None:
    tokenizer = byte_level()
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Replace("fox", "dog")])
    changed = byte_level()
    changed.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Replace("o", "0")])
    wordpiece = Tokenizer(models.WordPiece({"a": 0, "##b": 1, "[UNK]": 2}, unk_token="[UNK]"))
    wordpiece.decoder = decoders.WordPiece()
    for wrong in (changed, wordpiece):
        with pytest.raises(ModelError):
            Vocabulary.from_tokenizer(wrong, eos_ids=2)


def test_added_tokens_are_text_unless_they_are_special() -> None:
    tokenizer = byte_level()
    start = tokenizer.get_vocab_size()
    tokenizer.add_tokens(["<think>", "é x", "日"])
    tokenizer.add_special_tokens(["<|tool|>"])
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    found = [vocabulary.token_bytes(token_id) for token_id in range(start, start + 4)]
    assert found == [b"<think>", "é x".encode(), "日".encode(), b""]
    assert start + 3 in vocabulary.special_ids


def test_ends_of_text() -> None:
    tokenizer = byte_level()
    assert set(Vocabulary.from_tokenizer(tokenizer).eos_ids) == {0, 2}, "both usual names are ends"
    assert Vocabulary.from_tokenizer(tokenizer, eos_ids=2).eos_ids == (2,)
    several = Vocabulary.from_tokenizer(tokenizer, eos_ids=[2, 40, 2])
    assert several.eos_ids == (2, 40) and several.token_bytes(40) == b"" and 40 in several.special_ids
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    tokenizer.decoder = decoders.Fuse()
    for wrong in (None, [], [5], [-1]):
        with pytest.raises(ModelError):
            Vocabulary.from_tokenizer(tokenizer, eos_ids=wrong)


def test_the_files_beside_a_tokenizer_name_its_ends(tmp_path: Path) -> None:
    byte_level().save(str(tmp_path / "tokenizer.json"))
    assert set(Vocabulary.from_tokenizer(tmp_path).eos_ids) == {0, 2}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|im_end|>"}}))
    assert Vocabulary.from_tokenizer(str(tmp_path / "tokenizer.json")).eos_ids == (2,)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2]}))
    assert Vocabulary.from_tokenizer(tmp_path).eos_ids == (1, 2)
    for missing in (tmp_path / "nothing", tmp_path / "tokenizer_config.json", 5):
        with pytest.raises(ModelError):
            Vocabulary.from_tokenizer(missing)


def test_size_is_the_width_of_the_logits() -> None:
    tokenizer = byte_level()
    vocabulary = Vocabulary.from_tokenizer(tokenizer, size=400)
    assert vocabulary.size == 400 and vocabulary.token_bytes(399) == b""
    for token_id in (-1, 400):
        with pytest.raises(IndexError):
            vocabulary.token_bytes(token_id)
    with pytest.raises(ModelError, match="logits"):
        Vocabulary.from_tokenizer(tokenizer, size=100)


class Odd:
    """A tokenizer of a class that nobody knows, with the face of a slow transformers tokenizer."""

    all_special_ids = [0, 1, 2]
    eos_token_id = 2

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def get_vocab(self) -> dict[str, int]:
        return self.tokenizer.get_vocab()

    def encode(self, text: str, **options: Any) -> list[int]:
        self.tokenizer.encode_special_tokens = options["split_special_tokens"]
        return list(self.tokenizer.encode(text, add_special_tokens=options["add_special_tokens"]).ids)

    def decode(self, ids: list[int], **options: Any) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=options["skip_special_tokens"]))


def test_other_tokenizers() -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = byte_level()
    expected = Vocabulary.from_tokenizer(tokenizer, eos_ids=2)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>")
    for other in (fast, Odd(byte_level()), pickle.loads(pickle.dumps(tokenizer))):
        found = Vocabulary.from_tokenizer(other, eos_ids=2 if isinstance(other, Tokenizer) else None)
        assert found.tokens == expected.tokens and found.eos_ids == (2,)
        assert found.encode(TEXTS[0] + "<|im_end|>") == expected.encode(TEXTS[0] + "<|im_end|>")


def test_plain_text_never_encodes_to_special_ids() -> None:
    tokenizer = byte_level()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=50)
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    for text in ("a<|im_end|>b", "<|endoftext|>", TEXTS[0], ""):
        ids = vocabulary.encode(text)
        assert vocabulary.special_ids.isdisjoint(ids)
        assert b"".join(map(vocabulary.token_bytes, ids)) == text.encode()
    assert tokenizer.truncation and tokenizer.padding, "the tokenizer of the caller is left as it was"
    assert not tokenizer.encode_special_tokens
    with pytest.raises(ModelError):
        Vocabulary([b"a", b""], eos_ids=[1]).encode("a")


def test_a_vocabulary_without_all_bytes() -> None:
    """`accepts` doesn't depend on the vocabulary; what no token can write is never begun."""
    vocabulary = Vocabulary([b"a", b"b", b'"', b""], eos_ids=[3])
    compiler = GrammarCompiler(vocabulary)
    compiled = compiler.compile(Regex("[a-z]+|é"))
    assert compiled.accepts("xyz") and compiled.accepts("é") and not compiled.accepts("1")
    matcher = compiled.matcher()
    assert [matcher.fork().accept(token_id) for token_id in range(4)] == [True, True, False, False]
    from drawloom.errors import UnsatisfiableConstraint

    with pytest.raises(UnsatisfiableConstraint):
        compiler.compile(Regex("xyz"))
    assert compiler.compile(JSONSchema({"type": "string"})).accepts('"1"')
