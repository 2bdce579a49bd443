"""The bytes of every token, decided by decoding: neither a tokenizer's class nor its configuration is asked.

A style (how bytes are written as the strings of a vocabulary) is right if decoding all tokens, each between two plain
letters, gives exactly the bytes that the style reads from their names. One call decodes the whole vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..errors import ModelError
from .tokenizer_adapter import TokenizerAdapter

__all__ = ["read_token_bytes"]

Style = Callable[[str], bytes | None]
_SAMPLE = 512


def _byte_alphabet() -> dict[str, int]:
    """The printable stand-ins of byte-level vocabularies: a byte that is printable in Latin-1 stands for itself, the
    others follow from U+0100 in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [value for value in range(256) if value not in printable]
    return {chr(value): value for value in printable} | {chr(256 + i): value for i, value in enumerate(rest)}


_ALPHABET = _byte_alphabet()


def _byte_level(name: str) -> bytes | None:
    try:
        return bytes([_ALPHABET[char] for char in name])
    except KeyError:
        return None


def _sentencepiece(name: str) -> bytes | None:
    if len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
        try:
            return bytes([int(name[3:5], 16)])
        except ValueError:
            pass
    return _plain(name.replace("\u2581", " "))


def _plain(name: str) -> bytes | None:
    return name.encode("utf-8", "surrogatepass")


_STYLES: tuple[Style, ...] = (_byte_level, _sentencepiece, _plain)


def read_token_bytes(adapter: TokenizerAdapter) -> list[bytes]:
    """The bytes of each id from 0 to the largest. Raises ModelError where no style agrees with decoding."""
    if not adapter.names:
        raise ModelError("the tokenizer has no tokens")
    size = max(adapter.names) + 1
    ordinary = sorted(set(adapter.names) - set(adapter.added) - set(adapter.special))
    named = ((token_id, adapter.names[token_id]) for token_id in ordinary)
    separator = next((token_id for token_id, name in named if name.isascii() and name.isalpha()), None)
    if separator is None:
        raise ModelError("the tokenizer has no token of plain letters to decode others beside")
    probe = _Probe(adapter, separator)
    found = probe.ordinary(ordinary)
    for token_id, content in adapter.added.items():
        found[token_id] = probe.added(token_id, content)
    return [found.get(token_id, b"") for token_id in range(size)]


class _Probe:
    def __init__(self, adapter: TokenizerAdapter, separator: int) -> None:
        self.adapter = adapter
        self.separator = separator
        self.letters = adapter.names[separator].encode()

    def agrees(self, token_ids: Sequence[int], tokens: Sequence[bytes]) -> bool:
        ids = [self.separator]
        for token_id in token_ids:
            ids += (token_id, self.separator)
        expected = self.letters + b"".join(token + self.letters for token in tokens)
        return self.adapter.decode(ids) == expected.decode("utf-8", "replace")

    def ordinary(self, token_ids: list[int]) -> dict[int, bytes]:
        names = self.adapter.names
        sample = token_ids[:: max(1, len(token_ids) // _SAMPLE)]
        disagreeing: list[int] = []
        for style in _STYLES:
            read = {token_id: style(names[token_id]) for token_id in sample}
            if not self._all_agree(read):
                continue
            read = {token_id: style(names[token_id]) for token_id in token_ids}
            if self._all_agree(read):
                return {token_id: token for token_id, token in read.items() if token is not None}
            disagreeing = self._disagreeing(read)
        shown = ", ".join(f"{i} {names[i]!r} -> {self.adapter.decode([i])!r}" for i in disagreeing[:3])
        raise ModelError(f"the bytes of the tokens can't be told: decoding agrees with no known style ({shown})")

    def _all_agree(self, read: dict[int, bytes | None]) -> bool:
        tokens = [token for token in read.values() if token is not None]
        return len(tokens) == len(read) and self.agrees(list(read), tokens)

    def _disagreeing(self, read: dict[int, bytes | None]) -> list[int]:
        return [token_id for token_id, token in read.items() if token is None or not self.agrees([token_id], [token])]

    def added(self, token_id: int, content: str) -> bytes:
        for style in (_plain, _byte_level):
            token = style(content)
            if token is not None and self.agrees([token_id], [token]):
                return token
        decoded = self.adapter.decode([token_id])
        raise ModelError(f"the added token {token_id} {content!r} decodes to {decoded!r}")
