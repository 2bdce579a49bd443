"""Text to token ids and back, by the tokenizer of a checkpoint folder."""

import json
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers

from ..errors import ModelError, RequestError
from .byte_letters import byte_letters
from .markup import Markup, Special
from .tokenizer_files import read_settings

if TYPE_CHECKING:
    from ..grammar import Vocabulary

__all__ = ["Special", "Tokenizer"]


class Tokenizer:
    """A checkpoint's tokenizer. It never changes once it is built, and any thread may use it.

    `special_ids` maps the spelling of each special token to its id; `roles` maps ``"bos_token"``, ``"eos_token"`` and
    the like to spellings. `vocab_size` is the width of the model's logits, which may exceed the number of tokens.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        vocab_size: int,
        eos_ids: Sequence[int] = (),
        roles: Mapping[str, str] | None = None,
        add_bos: bool = False,
        chat_templates: Mapping[str, str] | None = None,
    ) -> None:
        """Takes `backend` over. A role that the vocabulary lacks, or an id beyond `vocab_size`: `ModelError`."""
        self._backend = backend
        self.vocab_size = vocab_size
        self.roles = dict(roles or {})
        self.chat_templates = dict(chat_templates or {})
        self.eos_ids = tuple(eos_ids)
        self.markup = Markup(_seal(backend))
        self.special_ids: Mapping[str, int] = self.markup.ids
        self.bos_id = self._role_id("bos_token")
        self.add_bos = add_bos and self.bos_id is not None
        self._special_id_set = frozenset(self.special_ids.values())
        self._unencodable = _unencodable_bytes(backend)
        self._vocabulary: Vocabulary | None = None
        self._vocabulary_lock = threading.Lock()
        _refuse_position_dependence(backend)
        largest = max([*backend.get_vocab().values(), *self.eos_ids])
        if largest >= vocab_size:
            raise ModelError(f"the tokenizer has a token with id {largest}, the model only ids below {vocab_size}")

    @classmethod
    def from_folder(cls, path: str | PathLike[str], *, vocab_size: int) -> "Tokenizer":
        """The tokenizer of a folder in Hugging Face form: tokenizer.json with the files that may stand beside it.

        End-of-sequence ids are tokenizer_config.json's ``eos_token`` and the ids of generation_config.json
        (config.json's where that has none). Templates: chat_template.jinja, or tokenizer_config.json's
        ``chat_template``. Missing or malformed files: `ModelError`.
        """
        folder = Path(path)
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise ModelError("the checkpoint has no tokenizer.json", file=str(file))
        try:
            backend = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises plain Exception
            raise ModelError(f"can't read the tokenizer: {error}", file=str(file)) from error
        settings = read_settings(folder)
        _add_declared(backend, settings.declared.union(settings.roles.values()))
        bos, eos = (
            backend.token_to_id(settings.roles[role]) if role in settings.roles else None
            for role in ("bos_token", "eos_token")
        )
        begins_with_bos = bos is not None and backend.encode("").ids[:1] == [bos]
        return cls(
            backend,
            vocab_size=vocab_size,
            eos_ids=tuple(dict.fromkeys(([] if eos is None else [eos]) + list(settings.eos_ids))),
            roles=settings.roles,
            add_bos=begins_with_bos if settings.add_bos is None else settings.add_bos,
            chat_templates=settings.chat_templates,
        )

    @property
    def chat_template(self) -> str | None:
        """The Jinja source of the checkpoint's default chat template."""
        return self.chat_templates.get("default")

    @property
    def vocabulary(self) -> "Vocabulary":
        """The same vocabulary for `drawloom.grammar`, built on first use. Its size is that of the logits."""
        from ..grammar import Vocabulary

        with self._vocabulary_lock:
            if self._vocabulary is None:
                self._vocabulary = Vocabulary.from_tokenizer(
                    self._backend, eos_ids=list(self.eos_ids), size=self.vocab_size
                )
            return self._vocabulary

    def encode(self, text: str) -> list[int]:
        """The ids of plain text: no special token, whatever the text spells, and none in front.

        Text that the vocabulary can't spell (a byte that it lacks, a lone surrogate): `RequestError`.
        """
        self._refuse_unencodable(text)
        encoding = self._backend.encode(text, add_special_tokens=False)
        if self._special_id_set.isdisjoint(encoding.ids):
            return encoding.ids
        return self._encode_around(text, encoding)

    def encode_pieces(self, pieces: Sequence[str | Special]) -> list[int]:
        """The ids of text mixed with special tokens. Strings that follow each other are encoded as one text.

        An unknown special token: `RequestError`.
        """
        ids: list[int] = []
        for kind, run in groupby(pieces, key=type):
            if issubclass(kind, str):
                ids += self.encode("".join(piece for piece in run if isinstance(piece, str)))
            else:
                ids += [self._special_id(piece) for piece in run]
        return ids

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of `ids`. Special tokens have none, unless `skip_special` is false: then it is their spelling.

        Bytes that form no character become U+FFFD. Ids that the model has but the tokenizer lacks (padding) have no
        text; ids outside of the model's range: `RequestError`.
        """
        if len(ids) and not 0 <= min(ids) <= max(ids) < self.vocab_size:
            raise RequestError("token_ids", ids, f"ids must lie in 0 … {self.vocab_size - 1}")
        return self._backend.decode(ids, skip_special_tokens=skip_special)

    def _encode_around(self, text: str, encoding: tokenizers.Encoding) -> list[int]:
        """Text can arrive at a special token that the model's own vocabulary spells too: cut inside each such place."""
        spans = zip(encoding.ids, encoding.offsets, strict=True)
        places = [span for index, span in spans if index in self._special_id_set]
        cuts = [start + 1 for start, end in places if end - start > 1]
        if len(cuts) < len(places):
            raise RequestError("text", text, "holds a character that can only be written as a special token")
        return [index for start, end in pairwise([0, *cuts, len(text)]) for index in self.encode(text[start:end])]

    def _role_id(self, role: str) -> int | None:
        name = self.roles.get(role)
        if name is None:
            return None
        if name not in self.special_ids:
            raise ModelError(f"the vocabulary has no token {name!r}, which the checkpoint names as its {role}")
        return self.special_ids[name]

    def _special_id(self, piece: str | Special) -> int:
        if not isinstance(piece, Special):
            raise RequestError("pieces", piece, "a piece is a string or a Special")
        if piece.name not in self.special_ids:
            known = ", ".join(map(repr, list(self.special_ids)[:12]))
            raise RequestError("special", piece.name, f"this checkpoint has no such special token; it has {known} …")
        return self.special_ids[piece.name]

    def _refuse_unencodable(self, text: str) -> None:
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise RequestError("text", text, f"half of a surrogate pair at position {error.start}") from error
        except AttributeError:
            raise RequestError("text", text, "must be a string") from None
        match = self._unencodable and self._unencodable.search(data)
        if match:
            position = len(data[: match.start()].decode(errors="ignore"))
            raise RequestError("text", text, f"the vocabulary can't spell {text[position]!r} at position {position}")


def _seal(backend: tokenizers.Tokenizer) -> dict[int, tokenizers.AddedToken]:
    """Make special tokens, flagged as such or not, unreachable from text. Returns the added tokens."""
    added = backend.get_added_tokens_decoder()
    for token in added.values():
        if token.content.strip() and not token.special:
            backend.add_special_tokens([_flagged_special(token)])
    backend.encode_special_tokens = True
    backend.no_truncation()
    backend.no_padding()
    return added


def _flagged_special(token: tokenizers.AddedToken) -> tokenizers.AddedToken:
    return tokenizers.AddedToken(
        token.content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
        special=True,
    )


def _add_declared(backend: tokenizers.Tokenizer, spellings: Iterable[str]) -> None:
    """Tokens that only tokenizer_config.json calls special, where the vocabulary has them."""
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    for text in sorted(spellings):
        if text not in known and len(text) > 1 and backend.token_to_id(text) is not None:
            backend.add_special_tokens([tokenizers.AddedToken(text, special=True, normalized=False)])


def _refuse_position_dependence(backend: tokenizers.Tokenizer) -> None:
    """A program's text is encoded piece by piece, so a tokenizer must not treat the beginning of a text differently."""
    for part in _parts(backend.normalizer) + _parts(backend.pre_tokenizer):
        if part["type"] == "Prepend" or part.get("add_prefix_space") or part.get("prepend_scheme", "never") != "never":
            raise ModelError(f"its tokenizer puts a space before each text ({part['type']}), which is not supported")


def _unencodable_bytes(backend: tokenizers.Tokenizer) -> re.Pattern[bytes] | None:
    """A byte-level vocabulary may lack bytes; `tokenizers` would drop them without a word."""
    if all(part["type"] != "ByteLevel" for part in _parts(backend.pre_tokenizer)):
        return None
    missing = bytes(byte for byte, letter in enumerate(byte_letters()) if backend.model.token_to_id(letter) is None)
    return re.compile(b"[" + re.escape(missing) + b"]") if missing else None


def _parts(component: Any) -> list[dict[str, Any]]:
    """The settings of a normalizer or pre-tokenizer, a sequence taken apart."""
    if component is None:
        return []
    state = json.loads(component.__getstate__())
    parts = state.get("normalizers") or state.get("pretokenizers")
    return [state] if parts is None else list(parts)
