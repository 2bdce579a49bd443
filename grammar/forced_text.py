"""The ordinary tokenisation of text that a grammar forces."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence

from .vocabulary import Vocabulary

__all__ = ["ForcedText"]

_CONTEXT = 8  # accepted tokens that are encoded again together with the forced text
_CACHED = 4096
# One continuation of each kind that pre-tokenisers tell apart.
_PROBES = (*"asA1 \n\t\"',.:_-}]\\é日😀", "  ", " a")


class ForcedText:
    """Encodes forced text for one vocabulary. Safe to share between threads."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._cache: OrderedDict[tuple[tuple[int, ...], bytes], tuple[tuple[int, ...], int]] = OrderedDict()
        self._sorted = sorted({token for token in vocabulary.tokens if token}) if vocabulary.can_encode else []
        self._longest = max(map(len, self._sorted), default=0)

    def encode(self, before: Sequence[int], forced: bytes) -> tuple[tuple[int, ...], int]:
        """The ids of `forced` behind the ids `before`, and how many of them hold whatever text follows."""
        key = (tuple(before[-_CONTEXT:]), forced)
        with self._lock:
            found = self._cache.get(key)
            if found is not None:
                self._cache.move_to_end(key)
                return found
        found = self._encode(*key)
        with self._lock:
            self._cache[key] = found
            if len(self._cache) > _CACHED:
                self._cache.popitem(last=False)
        return found

    def _encode(self, before: tuple[int, ...], forced: bytes) -> tuple[tuple[int, ...], int]:
        for context in (before, ()):
            text = self._text(context, forced)
            if text is None:
                continue
            ids = self._vocabulary.encode(text)
            if tuple(ids[: len(context)]) != context or self._bytes(ids) != text.encode():
                continue
            settled = min(self._settled(text, ids), self._unspanned(text.encode(), ids))
            return tuple(ids[len(context) :]), max(0, settled - len(context))
        return (), 0

    def _bytes(self, ids: Sequence[int]) -> bytes:
        return b"".join(self._vocabulary.tokens[token_id] for token_id in ids)

    def _text(self, context: tuple[int, ...], forced: bytes) -> str | None:
        """The text of both, without an unfinished last character; None if it doesn't begin with a whole one."""
        data = self._bytes(context) + forced
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            if error.reason != "unexpected end of data" or error.start <= len(data) - len(forced):
                return None
            return data[: error.start].decode()

    def _settled(self, text: str, ids: Sequence[int]) -> int:
        """How many ids stay the same under every probe of how the text may go on."""
        settled = len(ids)
        for probe in _PROBES:
            other = self._vocabulary.encode(text + probe)
            while list(ids[:settled]) != other[:settled]:
                settled -= 1
        return settled

    def _unspanned(self, data: bytes, ids: Sequence[int]) -> int:
        """How many ids end before the earliest place from which one token could reach beyond the end of `data`."""
        lengths = range(min(len(data), self._longest), 0, -1)
        reach = next((length for length in lengths if self._begins(data[-length:])), 0)
        end = 0
        for count, token_id in enumerate(ids):
            end += len(self._vocabulary.tokens[token_id])
            if end > len(data) - reach:
                return count
        return len(ids)

    def _begins(self, part: bytes) -> bool:
        """Whether a longer token begins with `part`."""
        index = bisect_right(self._sorted, part)
        return index < len(self._sorted) and self._sorted[index].startswith(part)
