"""The doors: the DSL in which programs are written, and what runs them."""

from .backend import Backend, set_default_backend
from .function import Function, function
from .language import assistant, gen, select, system, user
from .state import ProgramState

__all__ = [
    "Backend",
    "Function",
    "ProgramState",
    "assistant",
    "function",
    "gen",
    "select",
    "set_default_backend",
    "system",
    "user",
]
