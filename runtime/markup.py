"""A vocabulary's special tokens, and where their spellings occur in a text."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import tokenizers

__all__ = ["Markup", "Special"]


@dataclass(frozen=True)
class Special:
    """One special token, named by its spelling: ``Special("<|im_end|>")``."""

    name: str


class Markup:
    """The special tokens of a vocabulary.

    Every *added* token counts, whether its file flags it as special or not: DeepSeek's ``<think>`` is not flagged, yet
    only a template may write it. Not counted are whitespace and single characters: some vocabularies add runs of blanks
    as text, and letters to stand for bytes that UTF-8 never has.
    """

    def __init__(self, added_tokens: Mapping[int, tokenizers.AddedToken]) -> None:
        self._tokens = {token.content: token for token in added_tokens.values() if len(token.content.strip()) > 1}
        self.ids = {token.content: index for index, token in added_tokens.items() if token.content in self._tokens}

    def split(self, text: str) -> list[str | Special]:
        """`text` cut at every special token spelled in it: for the text of a template, never for what a user wrote.

        The leftmost, then the longest spelling wins; whitespace beside a token that swallows it (``lstrip``,
        ``rstrip``) goes with it. Both as `tokenizers` does.
        """
        pieces: list[str | Special] = []
        end = 0
        for match in self._pattern.finditer(text):
            pieces.append(text[end : match.start()])
            name = match.group()
            pieces.append(Special(name if name in self.ids else name.strip()))
            end = match.end()
        pieces.append(text[end:])
        return [piece for piece in pieces if piece]

    def starts(self, text: str) -> list[int]:
        """Where a special token begins in `text`, or would begin if the right text followed (overlaps included)."""
        found = {match.start() for match in self._anywhere.finditer(text)}
        for stem in (text, text.rstrip()):  # a template may strip the text before it appends more
            for length in range(1, min(self._longest, len(stem) + 1)):
                if stem[-length:] in self._beginnings:
                    found.add(len(stem) - length)
        return sorted(found)

    @cached_property
    def _spellings(self) -> list[str]:
        return sorted(self._tokens, key=len, reverse=True)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return _any_of(self._stripping(name) for name in self._spellings)

    @cached_property
    def _anywhere(self) -> re.Pattern[str]:
        return re.compile(f"(?={_any_of(map(re.escape, self._spellings)).pattern})")

    @cached_property
    def _beginnings(self) -> frozenset[str]:
        return frozenset(name[:length] for name in self._spellings for length in range(1, len(name)))

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._spellings), default=0)

    def _stripping(self, name: str) -> str:
        token = self._tokens[name]
        return (r"\s*" if token.lstrip else "") + re.escape(name) + (r"\s*" if token.rstrip else "")


def _any_of(alternatives: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(alternatives) or r"(?!)")
