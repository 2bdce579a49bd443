"""The seam to what runs the model: `Engine` fits it as it is."""

import atexit
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from ..errors import DrawloomError, RequestError
from ..grammar import Constraint
from ..runtime.request import Delta
from ..runtime.sampling_params import SamplingParams
from ..runtime.tokenizer import Tokenizer

__all__ = ["Backend", "Handle", "OnDelta", "default_backend", "set_default_backend"]

OnDelta = Callable[[Delta | DrawloomError], None]


class Handle(Protocol):
    """One submitted request."""

    def cancel(self) -> None:
        """End it soon. It may still send deltas, and sends a last one."""


class Backend(Protocol):
    """Runs requests. `submit` refuses by raising, and otherwise returns at once.

    `on_delta` then gets deltas, from any thread, until one has a `result` or an error comes instead; their texts joined
    are `result.text`. With `score_from` nothing is generated: the result's `logprobs` are those of
    `prompt_ids[score_from:]`, each given the ids before it.
    """

    @property
    def tokenizer(self) -> Tokenizer: ...

    def submit(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        constraint: Constraint | None = None,
        *,
        on_delta: OnDelta,
        score_from: int | None = None,
    ) -> Handle: ...


_lock = threading.Lock()
_default: Backend | None = None


def set_default_backend(backend: Backend | None) -> None:
    """What programs run on that are given no `backend=`: an `Engine`, or None for one of their own on first use.

    It is not closed by anyone but its owner.
    """
    global _default
    if backend is not None and not (hasattr(backend, "submit") and hasattr(backend, "tokenizer")):
        raise RequestError("backend", backend, "must be an Engine, or have its submit and tokenizer")
    with _lock:
        _default = backend


def default_backend() -> Backend:
    """The default backend. Created on first use, it is an `Engine` with the default model, closed at exit."""
    global _default
    with _lock:
        if _default is None:
            from ..runtime.engine import Engine  # torch is loaded for those alone who need it

            engine = Engine()
            atexit.register(engine.close)
            _default = engine
        return _default
