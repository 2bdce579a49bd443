"""Programs: ordinary functions over a state, run one at a time or thousands at once."""

import functools
import inspect
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..errors import EngineError, RequestError
from ..runtime.sampling_params import SamplingParams
from ..runtime.seeds import SEED_LIMIT, derive_seed, draw_seed
from .backend import Backend
from .hub import Hub, current_hub
from .language import SAMPLING_NAMES
from .program import Program, finish_all
from .state import ProgramState

__all__ = ["Function", "function"]

_RESERVED = ("backend", "seed", "stream")
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Function:
    """A program. `run` is also what calling it does."""

    def __init__(self, body: Callable[..., Any]) -> None:
        if inspect.iscoroutinefunction(body) or inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
            raise TypeError(f"{body.__qualname__} must be an ordinary function: `def` without `yield`")
        parameters = list(inspect.signature(body).parameters.values())
        if not parameters or parameters[0].kind not in (
            inspect.Parameter.POSITIONAL_ONLY,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
        ):
            raise TypeError(f"{body.__qualname__} needs a first parameter for the state")
        for parameter in parameters:
            if parameter.name in _RESERVED:
                raise TypeError(f"{body.__qualname__}: a parameter named {parameter.name!r} would hide that of run()")
        functools.update_wrapper(self, body)
        self.func = body
        self._signature = inspect.signature(body)
        self._state_name = parameters[0].name
        self._own_names = {parameter.name for parameter in parameters}
        # What can be called by keywords alone needs no slower look at each call.
        by_name = [parameter for parameter in parameters[1:] if parameter.kind in _BY_NAME]
        self._by_name = {parameter.name for parameter in by_name}
        self._required = {parameter.name for parameter in parameters[1:] if parameter.default is parameter.empty}

    def __call__(self, *args: Any, **kwargs: Any) -> ProgramState:
        return self.run(*args, **kwargs)

    def run(
        self,
        *args: Any,
        backend: Backend | None = None,
        seed: int | None = None,
        stream: bool = False,
        **kwargs: Any,
    ) -> ProgramState:
        """Run the program with these arguments and return its state, when all of it has run.

        backend: an `Engine`; None is the default one.
        seed: 0 <= seed < 2**63, of every draw in the program. None draws one; `state.seed` tells it.
        stream: return at once; the program runs, on this thread, while `state.text_iter()` is iterated or `state` read.
            It is cancelled when the state is dropped.

        Sampling parameters that are no parameters of the program are defaults of its gens: `run(temperature=0)`.

        Raises what the program's function raises. What fails without being read inside is raised when it is read from
        the state. Called in another program, this lets further programs run meanwhile.
        """
        hub = current_hub() or Hub()
        call, defaults = self._bound(args, kwargs)
        program, state = self._start(hub, call, defaults, backend, _checked_seed(seed), stream)
        if not stream:
            finish_all([program])
            if program.error is not None:
                raise program.error
        return state

    def run_batch(
        self,
        batch_kwargs: Iterable[Mapping[str, Any]],
        *,
        backend: Backend | None = None,
        seed: int | None = None,
        **defaults: Any,
    ) -> list[ProgramState]:
        """Run the program once for each mapping of arguments, all at once on this thread. The states come in order.

        Row i has the seed that belongs to i below `seed`, whatever the other rows are. What a row raises stays in its
        own state: `state.error()`. `defaults` are sampling parameters for all gens.
        """
        rows = [] if isinstance(batch_kwargs, Mapping) else list(batch_kwargs)
        if isinstance(batch_kwargs, Mapping) or not all(isinstance(row, Mapping) for row in rows):
            raise TypeError("run_batch takes a list with a mapping of keyword arguments for each run")
        for name in defaults:
            if name not in SAMPLING_NAMES:
                raise TypeError(f"run_batch() got an unexpected keyword argument {name!r}")
        root = _checked_seed(seed)
        calls = [self._bound((), {**defaults, **row}) for row in rows]
        hub = current_hub() or Hub()
        programs, states = [], []
        for index, (call, options) in enumerate(calls):
            program, state = self._start(hub, call, options, backend, derive_seed(root, ("row", index)), False)
            programs.append(program)
            states.append(state)
        finish_all(programs)
        return states

    def _bound(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Callable[[ProgramState], Any], dict[str, Any]]:
        """The call of the function, and sampling defaults. Raises TypeError where the arguments don't fit."""
        if self._state_name in kwargs:
            raise TypeError(f"{self.func.__qualname__}: {self._state_name!r} is the state, which run() provides")
        own = {name: value for name, value in kwargs.items() if name in self._own_names or name not in SAMPLING_NAMES}
        defaults = {name: value for name, value in kwargs.items() if name not in own}
        if args or not self._required <= own.keys() <= self._by_name:
            self._signature.bind(None, *args, **own)
        if defaults:
            SamplingParams(**defaults)
        return lambda state: self.func(state, *args, **own), defaults

    def _start(
        self,
        hub: Hub,
        call: Callable[[ProgramState], Any],
        defaults: Mapping[str, Any],
        backend: Backend | None,
        seed: int,
        stream: bool,
    ) -> tuple[Program, ProgramState]:
        program = Program(hub, backend=backend, seed=seed, defaults=defaults, stream=stream)
        inside, outside = ProgramState(program, program.main), ProgramState(program, program.main)
        program.start(lambda: call(inside))
        if stream:  # nobody can read on once the caller's handle is gone
            dropped = EngineError("its state was dropped")
            weakref.finalize(outside, program.abort, dropped).atexit = False
        return program, outside


def _checked_seed(seed: int | None) -> int:
    if seed is None:
        return draw_seed()
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < SEED_LIMIT:
        raise RequestError("seed", seed, f"must be an integer from 0 to {SEED_LIMIT - 1}")
    return seed


def function(body: Callable[..., Any]) -> Function:
    """Make a program of a function whose first parameter is the state.

    >>> @function
    ... def answer(s, question):
    ...     s += user(question)
    ...     s += assistant(gen("answer", max_tokens=50))

    The function runs as a greenlet of the thread that calls `run`, and never beside another one: it needs no locks, its
    thread-locals are those of the thread, and what blocks inside it other than reading its state blocks all programs.
    """
    return Function(body)
