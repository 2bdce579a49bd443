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

if TYPE_CHECKING:
    from .frontend import ProgramState as ProgramState
    from .frontend import assistant as assistant
    from .frontend import function as function
    from .frontend import gen as gen
    from .frontend import select as select
    from .frontend import set_default_backend as set_default_backend
    from .frontend import system as system
    from .frontend import user as user
    from .grammar import EBNF as EBNF
    from .grammar import Choice as Choice
    from .grammar import JSONSchema as JSONSchema
    from .grammar import Regex as Regex
    from .runtime.engine import Engine as Engine
    from .runtime.engine_config import EngineConfig as EngineConfig
    from .runtime.markup import Special as Special
    from .runtime.request import Delta as Delta
    from .runtime.request import Result as Result
    from .runtime.sampling_params import SamplingParams as SamplingParams

__version__ = "0.1.0"

__all__ = [
    "Choice",
    "CompileBudgetExceeded",
    "ConstraintError",
    "Delta",
    "DrawloomError",
    "EBNF",
    "Engine",
    "EngineConfig",
    "EngineError",
    "InvalidConstraint",
    "JSONSchema",
    "ModelError",
    "ProgramError",
    "ProgramState",
    "PromptTooLong",
    "Regex",
    "RequestError",
    "Result",
    "SamplingParams",
    "Special",
    "UnsatisfiableConstraint",
    "UnsupportedConstraint",
    "__version__",
    "assistant",
    "function",
    "gen",
    "select",
    "set_default_backend",
    "system",
    "user",
]

_PLACES: dict[str, str] = {
    "Choice": ".grammar",
    "Delta": ".runtime.request",
    "EBNF": ".grammar",
    "Engine": ".runtime.engine",
    "EngineConfig": ".runtime.engine_config",
    "JSONSchema": ".grammar",
    "ProgramState": ".frontend",
    "Regex": ".grammar",
    "Result": ".runtime.request",
    "SamplingParams": ".runtime.sampling_params",
    "Special": ".runtime.markup",
    "assistant": ".frontend",
    "function": ".frontend",
    "gen": ".frontend",
    "select": ".frontend",
    "set_default_backend": ".frontend",
    "system": ".frontend",
    "user": ".frontend",
}

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
