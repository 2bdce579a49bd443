"""The handle through which a program writes, and through which it and its caller read."""

from collections.abc import Callable, Iterator
from typing import Any, NoReturn, Self

from ..errors import EngineError, ProgramError
from .branch import Branch
from .nodes import Expression, as_expression
from .program import Program
from .variable import Variable

__all__ = ["ProgramState"]


class ProgramState:
    """One run of a program.

    `state += expression` appends and returns at once. Reading waits for what is read: inside the program other
    programs run meanwhile. What went wrong is raised where it is read, as a :class:`ProgramError` with its cause; the
    program may catch it and go on. A state belongs to the thread that called `run`.
    """

    def __init__(self, program: Program, branch: Branch) -> None:
        self._program = program
        self._branch = branch

    @property
    def seed(self) -> int:
        """The seed of the whole program: `run(seed=state.seed)` with the same arguments gives the same results."""
        return self._program.seed

    @property
    def ret_value(self) -> Any:
        """What the program's function returned."""
        self._wait_for_all()
        return self._program.returned

    def __iadd__(self, expression: Expression | str) -> Self:
        if not self._program.is_current:
            raise EngineError("only the program itself can append to its state, while it runs")
        self._branch.append(as_expression(expression))
        return self

    def __getitem__(self, name: str) -> Any:
        """The value of a variable. Raises `ProgramError` if it has none."""
        variable = self._variable(name)
        if variable.error is not None:
            self._raise(variable.error)
        return variable.value

    def __contains__(self, name: object) -> bool:
        """Whether a gen or select of that name has been appended."""
        return name in self._branch.variables

    def raw(self, name: str) -> str:
        """The text of a variable, also where it could not become a value."""
        return self._variable(name).text

    def get_meta_info(self, name: str) -> dict[str, Any]:
        """How a variable came to be, also where its text could not become a value.

        Of a gen: token_ids, logprobs, top_logprobs, prompt_logprobs, finish_reason, stop_reason, seed, prompt_tokens,
        completion_tokens, cached_tokens, spliced_tokens, fingerprint. The prompt's first `spliced_tokens` are ids that
        this branch's model had read or written before; where a chat template rewrites history they end early.
        Of a select: method, and by choice scores, token_ids and logprobs.
        """
        variable = self._variable(name)
        if variable.meta is None:
            assert variable.error is not None
            self._raise(variable.error)
        return dict(variable.meta)

    def text(self) -> str:
        """All that has been appended so far, written out. In a chat each message has a line ``role: ``."""
        self._wait_for_all()
        self._raise_failure()
        return self._branch.transcript.text

    def messages(self) -> list[dict[str, str]]:
        """The messages of a chat so far: ``{"role": …, "content": …}``."""
        self._wait_for_all()
        self._raise_failure()
        return [message.as_dict() for message in self._branch.transcript.messages]

    def error(self) -> BaseException | None:
        """What the program raised, or else the failure that it has not read; None if all went well."""
        self._wait_for_all()
        return self._program.error or self._branch.failure

    def text_iter(self, var: str | None = None) -> Iterator[str]:
        """Pieces of the text as they come, of one variable or of all; joined they are `raw(var)` or `text()`.

        With `run(stream=True)` the program runs while this is iterated. A failure is raised after the text before it.
        """
        self._branch.watch()
        variable = self._find(var) if var is not None else None
        pieces = variable.pieces if variable is not None else self._branch.transcript.pieces
        is_complete = self._end_of(variable)
        position = 0
        while True:
            self._program.waiters.wait(lambda: len(pieces) > position or is_complete())
            if len(pieces) == position:
                break
            yield from pieces[position:]
            position = len(pieces)
        if variable is None:
            self._raise_failure()
        elif variable.error is not None:
            self._raise(variable.error)

    def cancel(self) -> None:
        """End the program: its requests are cancelled, and what is missing raises `ProgramError` when read."""
        self._program.abort(EngineError("the program was cancelled"))

    def _end_of(self, variable: Variable | None) -> Callable[[], bool]:
        """When a variable is complete, or all: for the program what it has appended, for others what it will have."""
        if variable is not None:
            return lambda: variable.settled
        if self._program.is_current:
            return lambda: self._branch.is_idle
        return lambda: self._program.is_finished

    def _wait_for_all(self) -> None:
        self._branch.settle()
        self._program.waiters.wait(self._end_of(None))

    def _find(self, name: str) -> Variable:
        program, variables = self._program, self._branch.variables
        self._branch.settle()
        if not program.is_current:
            program.waiters.wait(lambda: name in variables or program.is_finished)
        if name not in variables:
            known = f"there are {', '.join(map(repr, variables))}" if variables else "there is none"
            problem = f"no gen or select of this name was appended; {known}"
            error = ProgramError(self._branch.name, name, self._branch.transcript.text, problem)
            raise error from program.error
        return variables[name]

    def _variable(self, name: str) -> Variable:
        variable = self._find(name)
        self._program.waiters.wait(lambda: variable.settled)
        return variable

    def _raise_failure(self) -> None:
        if self._branch.failure is not None:
            self._raise(self._branch.failure)

    def _raise(self, error: ProgramError) -> NoReturn:
        """Inside the program, a failure that was read is dealt with."""
        if self._program.is_current:
            self._branch.acknowledge()
        raise error.with_traceback(None)
