"""The seam behind which the constraint engines stand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import DrawloomError
from .regex_nodes import Node
from .vocabulary import Vocabulary

__all__ = ["EngineGrammar", "EngineMatcher", "EngineRefusal", "GrammarEngine", "GrammarSource", "Probe"]

Bitmask = NDArray[np.int32]


class EngineRefusal(Exception):
    """An engine refuses a grammar. Never leaves the package: the compiler says it in the words of the constraint."""

    def __init__(self, kind: Literal["unsupported", "unsatisfiable", "budget"], message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


Probe = Callable[[str], EngineRefusal | None]


class GrammarSource(Protocol):
    """A constraint in the forms that engines take."""

    @property
    def lark(self) -> str:
        """A grammar in llguidance's Lark."""

    def tree(self) -> Node:
        """A regular language. Raises UnsupportedConstraint, with path and keyword, for what isn't said as one."""


class EngineMatcher(Protocol):
    """The state of one text within a grammar. It takes tokens with bytes only; the end of the text is the caller's."""

    def fill(self, row: Bitmask) -> None:
        """Writes the bits of the tokens that may come next, and no other, into all words of `row`; with them those of
        all ends of text where the text may end."""

    def allows(self, token_ids: Sequence[int]) -> int:
        """How many of `token_ids` may come next, one after the other. Changes nothing."""

    def advance(self, token_ids: Sequence[int]) -> None:
        """Takes ids that `allows` has allowed."""

    def rollback(self, count: int) -> None:
        """Takes back the last `count` ids."""

    def fork(self) -> EngineMatcher: ...

    def can_end(self) -> bool:
        """Whether the text may end here."""

    def must_end(self) -> bool:
        """Whether the text may end here and can't go on."""

    def forced_bytes(self) -> bytes:
        """The bytes that any text must go on with, as far as the engine tells; maybe none."""


class EngineGrammar(Protocol):
    """A compiled grammar, shared by all of its matchers."""

    @property
    def num_bytes(self) -> int:
        """About how much memory it takes, what its matchers leave behind in it included."""

    def matcher(self) -> EngineMatcher: ...

    def matches(self, data: bytes) -> bool:
        """Whether `data` is a whole text of the grammar, however it might be cut into tokens."""


class GrammarEngine(Protocol):
    name: str

    def __init__(self, vocabulary: Vocabulary) -> None: ...

    def compile(self, source: GrammarSource) -> EngineGrammar:
        """Raises EngineRefusal; UnsupportedConstraint for what the engine's table doesn't call exact."""

    def probe(self, lark: str) -> EngineRefusal | None:
        """What `compile` would refuse at once; cheap, used to find the place in a constraint."""

    def fill_batch(self, matchers: Sequence[tuple[Any, int]], bitmask: Bitmask) -> dict[int, DrawloomError]:
        """`fill` for many rows of this engine's matchers, other threads running meanwhile. The errors, by index."""
