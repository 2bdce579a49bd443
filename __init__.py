"""Drawloom: structured generation on a batch-invariant runtime.

Every name here is loaded on first use, so `import drawloom` is cheap and imports no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from .errors import (
    CompileBudgetExceeded,
    ConstraintError,
    DrawloomError,
    EngineError,
    InvalidConstraint,
    ModelError,
    ProgramError,
    PromptTooLong,
    RequestError,
    UnsatisfiableConstraint,
    UnsupportedConstraint,
)

__version__ = "0.1.0"

__all__ = [
    "CompileBudgetExceeded",
    "ConstraintError",
    "DrawloomError",
    "EngineError",
    "InvalidConstraint",
    "ModelError",
    "ProgramError",
    "PromptTooLong",
    "RequestError",
    "UnsatisfiableConstraint",
    "UnsupportedConstraint",
    "__version__",
]

_PLACES: dict[str, str] = {}

if not TYPE_CHECKING:  # a __getattr__ that type checkers see would hide every misspelt name from them

    def __getattr__(name: str) -> object:
        place = _PLACES.get(name)
        if place is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(place, __name__), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
