"""One face for the tokenizers that Drawloom reads a vocabulary from."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import ModelError

__all__ = ["TokenizerAdapter", "adapt_tokenizer"]


@dataclass(frozen=True)
class TokenizerAdapter:
    """What is asked of a tokenizer. `added` and `special` map ids to contents; special ones are not text."""

    names: dict[int, str]
    added: dict[int, str]
    special: dict[int, str]
    decode: Callable[[list[int]], str]
    encode: Callable[[str], list[int]]
    eos_ids: tuple[int, ...] = ()
    folder: Path | None = field(default=None)


def adapt_tokenizer(tokenizer: Any) -> TokenizerAdapter:
    """Adapts a `tokenizers.Tokenizer`, a transformers tokenizer or the path of a tokenizer.json (or of its folder)."""
    if isinstance(tokenizer, str | Path):
        path = Path(tokenizer)
        path = path / "tokenizer.json" if path.is_dir() else path
        return _adapt_fast(_load(path), (), path.parent)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None and hasattr(backend, "get_added_tokens_decoder"):
        return _adapt_fast(backend, _own_ends(tokenizer), None)
    if hasattr(tokenizer, "get_added_tokens_decoder"):
        return _adapt_fast(tokenizer, (), None)
    if all(hasattr(tokenizer, name) for name in ("get_vocab", "decode", "encode", "all_special_ids")):
        return _adapt_slow(tokenizer)
    raise ModelError(f"{type(tokenizer).__name__} is no tokenizer that Drawloom can read")


def _load(path: Path) -> Any:
    from tokenizers import Tokenizer

    if not path.is_file():
        raise ModelError("there is no tokenizer", file=str(path))
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exceptions
        raise ModelError(f"the tokenizer can't be read: {error}", file=str(path)) from None


def _own_ends(tokenizer: Any) -> tuple[int, ...]:
    end = getattr(tokenizer, "eos_token_id", None)
    return () if end is None else (int(end),)


def _adapt_fast(tokenizer: Any, eos_ids: tuple[int, ...], folder: Path | None) -> TokenizerAdapter:
    added = tokenizer.get_added_tokens_decoder()
    special = {token_id: token.content for token_id, token in added.items() if token.special}
    return TokenizerAdapter(
        names={token_id: name for name, token_id in tokenizer.get_vocab(with_added_tokens=True).items()},
        added={token_id: token.content for token_id, token in added.items() if not token.special},
        special=special,
        decode=lambda ids: str(tokenizer.decode(ids, skip_special_tokens=False)),
        encode=_PlainEncoder(tokenizer, frozenset(special)),
        eos_ids=eos_ids,
        folder=folder,
    )


class _PlainEncoder:
    """Encodes text as text: what looks like a special token is spelled out.

    Only a text that does contain one needs a tokenizer with other settings; that copy is made when it is first met.
    """

    def __init__(self, tokenizer: Any, special_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._special_ids = special_ids
        self._lock = threading.Lock()
        self._spelling: Any = None

    def __call__(self, text: str) -> list[int]:
        if self._tokenizer.truncation is None and self._tokenizer.padding is None:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
            if self._special_ids.isdisjoint(ids):
                return ids
        with self._lock:
            if self._spelling is None:
                self._spelling = type(self._tokenizer).from_str(self._tokenizer.to_str())
                self._spelling.encode_special_tokens = True
                self._spelling.no_truncation()
                self._spelling.no_padding()
        return list(self._spelling.encode(text, add_special_tokens=False).ids)


def _adapt_slow(tokenizer: Any) -> TokenizerAdapter:
    special_ids = {int(token_id) for token_id in tokenizer.all_special_ids}
    names = {int(token_id): str(name) for name, token_id in tokenizer.get_vocab().items()}
    added = {int(token_id): str(token) for token_id, token in getattr(tokenizer, "added_tokens_decoder", {}).items()}
    flagged = {
        token_id
        for token_id, token in getattr(tokenizer, "added_tokens_decoder", {}).items()
        if getattr(token, "special", False)
    }
    special_ids |= flagged
    return TokenizerAdapter(
        names=names,
        added={token_id: content for token_id, content in added.items() if token_id not in special_ids},
        special={token_id: names.get(token_id, added.get(token_id, "")) for token_id in special_ids},
        decode=lambda ids: str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)),
        encode=lambda text: list(tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)),
        eos_ids=_own_ends(tokenizer),
    )
