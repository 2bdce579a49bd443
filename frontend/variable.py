"""What one gen or select will have been: pending, then a value or an error."""

from typing import Any

from ..errors import ProgramError

__all__ = ["Variable"]


class Variable:
    """Written by the operation that runs it and settled once, by its branch."""

    __slots__ = ("error", "meta", "name", "ordinal", "pieces", "settled", "value")

    def __init__(self, name: str | None, ordinal: int) -> None:
        self.name = name
        self.ordinal = ordinal  # of all gens in its branch
        self.pieces: list[str] = []
        self.value: Any = None
        self.meta: dict[str, Any] | None = None
        self.error: ProgramError | None = None
        self.settled = False

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def __str__(self) -> str:
        return f"variable {self.name!r}" if self.name is not None else f"gen number {self.ordinal}"
