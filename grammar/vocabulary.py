"""Token ids and the bytes that they write."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ..errors import ModelError
from .token_bytes import read_token_bytes
from .tokenizer_adapter import adapt_tokenizer

__all__ = ["Vocabulary"]

# What open models call the token that ends a text or a turn; used only where nothing else says which it is.
_END_NAMES = (
    "</s>",
    "<eos>",
    "[EOS]",
    "<|eos|>",
    "<|end|>",
    "<|eot_id|>",
    "<|im_end|>",
    "<|return|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<｜end▁of▁sentence｜>",
)


class Vocabulary:
    """The bytes of each token id below `size`, which is the width of the model's logits.

    Special tokens, ends of text and ids that the tokenizer doesn't know have no bytes: under a constraint they are
    never sampled, except the ends where the text may end.
    """

    def __init__(
        self,
        tokens: Sequence[bytes],
        *,
        eos_ids: Iterable[int],
        special_ids: Iterable[int] = (),
        encode: Callable[[str], list[int]] | None = None,
    ) -> None:
        self.size = len(tokens)
        self.eos_ids = tuple(dict.fromkeys(int(token_id) for token_id in eos_ids))
        if not self.eos_ids:
            raise ModelError("the vocabulary has no end of text: pass eos_ids")
        self.special_ids = frozenset(int(token_id) for token_id in special_ids) | frozenset(self.eos_ids)
        outside = [token_id for token_id in self.special_ids if not 0 <= token_id < self.size]
        if outside:
            raise ModelError(f"token ids outside of a vocabulary of {self.size}: {sorted(outside)[:5]}")
        self.tokens = tuple(b"" if index in self.special_ids else bytes(token) for index, token in enumerate(tokens))
        self._encode = encode

    @classmethod
    def from_tokenizer(
        cls, tokenizer: Any, *, eos_ids: int | Iterable[int] | None = None, size: int | None = None
    ) -> Vocabulary:
        """Reads a vocabulary, and holds the bytes of every token against what the tokenizer decodes it to.

        Args:
            tokenizer: a `tokenizers.Tokenizer`, a transformers tokenizer, or the path of a tokenizer.json.
            eos_ids: every id that ends a text. None: the tokenizer's own, or those that the files beside tokenizer.json
                name, or else its special tokens with a usual name for an end.
            size: the width of the model's logits. None: one more than the largest id.

        Raises:
            ModelError: if the bytes of a token can't be told, no end of text is known, or `size` is too small.
        """
        adapter = adapt_tokenizer(tokenizer)
        tokens = read_token_bytes(adapter)
        if eos_ids is None:
            eos_ids = _find_ends(adapter.eos_ids, adapter.folder, adapter.special)
        elif isinstance(eos_ids, int):
            eos_ids = (eos_ids,)
        if size is not None and size < len(tokens):
            raise ModelError(f"the tokenizer has {len(tokens)} ids, the model has logits for {size}")
        padding = [b""] * ((size or len(tokens)) - len(tokens))
        return cls(tokens + padding, eos_ids=eos_ids, special_ids=adapter.special, encode=adapter.encode)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that `token_id` writes; none for special tokens, ends of text and unused ids."""
        if not 0 <= token_id < self.size:
            raise IndexError(f"token id {token_id} is outside of a vocabulary of {self.size}")
        return self.tokens[token_id]

    @property
    def can_encode(self) -> bool:
        return self._encode is not None

    def encode(self, text: str) -> list[int]:
        """The tokenizer's ordinary ids of plain text: special tokens in it are spelled out, none is added."""
        if self._encode is None:
            raise ModelError("this vocabulary was made without a tokenizer and can't encode text")
        return self._encode(text)


def _find_ends(own: Sequence[int], folder: Path | None, special: dict[int, str]) -> list[int]:
    found = list(own)
    by_name = {name: token_id for token_id, name in special.items()}
    if folder is not None and not found:
        generation = _read_json(folder / "generation_config.json").get("eos_token_id")
        found += [generation] if isinstance(generation, int) else list(generation or ())
        named = _read_json(folder / "tokenizer_config.json").get("eos_token")
        name = named.get("content") if isinstance(named, dict) else named
        found += [by_name[name]] if name in by_name else []
    return found or [by_name[name] for name in _END_NAMES if name in by_name]


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    document = json.loads(path.read_text(encoding="utf-8"))
    return document if isinstance(document, dict) else {}
