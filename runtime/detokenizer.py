"""From committed token ids to text, piece by piece."""

import codecs
from collections.abc import Iterable
from typing import Protocol

__all__ = ["Detokenizer", "TokenBytes"]


class TokenBytes(Protocol):
    """The part of a vocabulary that is needed: the bytes of a token, none for a special token."""

    def token_bytes(self, token_id: int) -> bytes: ...


class Detokenizer:
    """The text of one sequence as its ids come in.

    A character is given out when its last byte is there. Bytes that are no UTF-8 become U+FFFD as in
    ``bytes.decode(errors="replace")``. However the ids are cut into pushes, the pieces join to the same text.
    """

    def __init__(self, vocabulary: TokenBytes) -> None:
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Iterable[int]) -> str:
        """The text that `ids` complete."""
        return self._decoder.decode(b"".join(self._vocabulary.token_bytes(token_id) for token_id in ids))

    def finish(self) -> str:
        """What an unfinished character at the end comes to: U+FFFD, or nothing if there is none."""
        return self._decoder.decode(b"", final=True)
