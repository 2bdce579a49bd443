"""The tokenizer that a GGUF file describes, as a `tokenizers.Tokenizer`."""

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence

from ..errors import ModelError

__all__ = ["build_tokenizer", "tokenizer_settings"]

_CONTROL, _USER_DEFINED = 3, 4  # values of tokenizer.ggml.token_type
_ROLES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


def build_tokenizer(fields: Mapping[str, Any]) -> Tokenizer:
    """A byte-level BPE tokenizer from the ``tokenizer.ggml.*` fields of a GGUF file (lists and scalars, decoded).

    Control tokens become special tokens, user-defined tokens become added tokens. Another kind of tokenizer, or a way
    to split words that is not known here: `ModelError`.
    """
    kind = fields.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise ModelError(f"the GGUF file's tokenizer is of kind {kind!r}; only 'gpt2' (byte-level BPE) is supported")
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(BPE({token: index for index, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = _word_splitter(str(fields.get("tokenizer.ggml.pre")))
    tokenizer.decoder = ByteLevelDecoder()
    types: list[int] = fields["tokenizer.ggml.token_type"]
    for token, token_type in zip(tokens, types, strict=True):
        if token_type == _CONTROL:
            tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif token_type == _USER_DEFINED:
            tokenizer.add_tokens([AddedToken(token, special=False, normalized=False)])
    return tokenizer


def tokenizer_settings(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a ``tokenizer_config.json`` for the same file: roles, BOS, chat template."""
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": bool(fields.get("tokenizer.ggml.add_bos_token", False)),
        "clean_up_tokenization_spaces": False,
    }
    for role, key in _ROLES.items():
        index = fields.get(f"tokenizer.ggml.{key}_token_id")
        if index is not None:
            settings[role] = tokens[index]
    if "tokenizer.chat_template" in fields:
        settings["chat_template"] = fields["tokenizer.chat_template"]
    return settings


def _word_splitter(name: str) -> PreTokenizer:
    """The rules are those that llama.cpp attaches to the names."""
    words = ByteLevel(add_prefix_space=False, use_regex=True)  # GPT-2's split
    if name == "gpt-2":
        return words
    if name == "smollm":
        return Sequence([Digits(individual_digits=True), words])
    raise ModelError(f"the GGUF file splits words by the rule {name!r}; known rules are 'gpt-2' and 'smollm'")
