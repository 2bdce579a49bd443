"""Which of the ids that the model has seen can begin the next prompt.

A prompt is wanted as text and special tokens. The ids that the model read and wrote before are kept as far as they
spell the same, even where a tokenizer would spell the text otherwise: they are in the cache, and they are what the
model wrote.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from ..runtime.tokenizer import Special, Tokenizer

__all__ = ["Prompt", "SeenIds"]

# A spelling has one character for each byte of text (below U+0100) and one for each special token (from here on).
_SPECIAL = 0x10000
_SPECIAL_LETTERS = re.compile("([\U00010000-\U0010ffff])")


@dataclass(frozen=True, slots=True)
class Prompt:
    """`num_spliced`: how many ids at the start were kept from before."""

    ids: list[int]
    num_spliced: int


class SeenIds:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._ends: list[int] = []  # where each id ends in the spelling
        self._spelling = ""
        self._unspelled: tuple[Prompt, list[int]] | None = None

    def extend(self, prompt: Prompt, generated: list[int]) -> None:
        """The model has read `prompt` and written `generated`."""
        self._spell()
        self._unspelled = prompt, generated

    def prompt(self, pieces: Sequence[str | Special]) -> Prompt:
        """The ids of `pieces`: seen ones as far as they spell the same, then the tokenizer's for the rest.

        A character is never cut: an id that ends inside one is kept only where the next one is.
        """
        self._spell()
        if not self._ids:
            return Prompt(self._tokenizer.encode_pieces(pieces), 0)
        names = {self._tokenizer.special_ids[piece.name]: piece for piece in pieces if isinstance(piece, Special)}
        wanted = "".join(
            chr(_SPECIAL + self._tokenizer.special_ids[piece.name])
            if isinstance(piece, Special)
            else piece.encode("utf-8", "surrogatepass").decode("latin-1")
            for piece in pieces
        )
        kept = bisect_right(self._ends, _shared_length(self._spelling, wanted))
        while kept and _inside_character(wanted, self._ends[kept - 1]):
            kept -= 1
        rest = wanted[self._ends[kept - 1] if kept else 0 :]
        parts = [
            names[ord(part) - _SPECIAL]
            if _SPECIAL_LETTERS.match(part)
            else part.encode("latin-1").decode("utf-8", "surrogatepass")
            for part in _SPECIAL_LETTERS.split(rest)
            if part
        ]
        return Prompt(self._ids[:kept] + self._tokenizer.encode_pieces(parts), kept)

    def _spell(self) -> None:
        """Only now, since most programs ask for no second prompt."""
        if self._unspelled is None:
            return
        prompt, generated = self._unspelled
        self._unspelled = None
        kept = prompt.num_spliced
        added = prompt.ids[kept:] + generated
        letters = [self._letters(token_id) for token_id in added]
        del self._ids[kept:], self._ends[kept:]
        end = self._ends[-1] if self._ends else 0
        self._spelling = self._spelling[:end] + "".join(letters)
        self._ends += [end := end + len(spelled) for spelled in letters]
        self._ids += added

    def _letters(self, token_id: int) -> str:
        spelled = self._tokenizer.vocabulary.tokens[token_id]
        return spelled.decode("latin-1") if spelled else chr(_SPECIAL + token_id)


def _shared_length(seen: str, wanted: str) -> int:
    if wanted.startswith(seen):
        return len(seen)
    lengths = range(1, min(len(seen), len(wanted)) + 1)
    return bisect_left(lengths, True, key=lambda length: seen[:length] != wanted[:length])


def _inside_character(spelling: str, place: int) -> bool:
    return place < len(spelling) and "\x80" <= spelling[place] <= "\xbf"
