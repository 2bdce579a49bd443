"""What an operation in flight sees of the branch that it works for."""

from typing import Protocol

from .hub import Hub
from .transcript import Transcript
from .variable import Variable

__all__ = ["Owner"]


class Owner(Protocol):
    hub: Hub
    transcript: Transcript
    watched: bool  # somebody reads text as it comes: every piece is news, not the end alone

    def has_news(self) -> None:
        """A piece of text has come."""

    def end(self, variable: Variable, problem: str | None, cause: Exception | None) -> None:
        """The operation is over: its variable has a value, or `problem` says why it has none."""
