"""A program's line of text: nodes are appended to its queue, and worked off one after the other without a thread."""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import ProgramError, RequestError
from ..runtime.sampling_params import SamplingParams
from ..runtime.seeds import derive_seed
from ..runtime.tokenizer import Special
from .backend import Backend
from .choice_scoring import ChoiceScoring
from .generation import Generation
from .hub import Hub
from .nodes import CloseRole, Expression, Gen, OpenRole, Select, Step, Text, steps
from .transcript import Transcript
from .variable import Variable

__all__ = ["Branch"]


class Branch:
    """Nothing that was appended after a failed variable runs until the program has read the error.

    What had been appended by then is skipped, in whatever order requests and program got to run. The program may then
    go on, for example with another attempt.
    """

    def __init__(
        self,
        name: str,
        hub: Hub,
        *,
        seed: int,
        backend: Callable[[], Backend],
        defaults: Mapping[str, Any],
        watched: bool,
        has_news: Callable[[], None],
    ) -> None:
        self.name = name
        self.hub = hub
        self.watched = watched
        self.has_news = has_news
        self.variables: dict[str, Variable] = {}
        self.transcript = Transcript()
        self.failure: ProgramError | None = None
        self._seed = seed
        self._backend = backend
        self._defaults = defaults
        self._queue: deque[tuple[Step | None, Variable | None]] = deque()
        self._active: Generation | ChoiceScoring | None = None
        self._is_chat: bool | None = None
        self._num_gens = 0
        self._num_skipped_roles = 0

    @property
    def is_idle(self) -> bool:
        return self._active is None and not self._queue

    def append(self, expression: Expression) -> None:
        added = steps(expression)
        self._check_form(added)
        for step in added:
            if isinstance(step, Text):
                if step.text:
                    self._queue.append((step, None))
            elif isinstance(step, Gen | Select):
                variable = Variable(step.name, self._num_gens)
                self._num_gens += isinstance(step, Gen)
                if step.name is not None:
                    self.variables[step.name] = variable
                self._queue.append((step, variable))
            else:
                self._queue.append((step, None))
        self._pump()

    def settle(self) -> None:
        """Nothing more is appended before a read: a select at the end has nothing after it."""
        if self._queue and isinstance(self._queue[-1][0], Select):
            self._queue.append((None, None))
            self._pump()

    def watch(self) -> None:
        """From now on every piece of text is news."""
        self.watched = True
        if self._active is not None:
            self._active.advance()

    def acknowledge(self) -> None:
        """The program has read the failure and goes on."""
        self.failure = None

    def abort(self, cause: BaseException) -> None:
        """Cancel what is in flight, and let nothing else begin."""
        if self.failure is None:
            self.failure = self._error(None, f"the program ended ({type(cause).__name__}: {cause})", cause)
        active, self._active = self._active, None
        if active is not None:
            active.cancel()
            self._skip(active.variable)
        self._pump()

    def end(self, variable: Variable, problem: str | None, cause: Exception | None) -> None:
        """Called by the operation in flight when it is over."""
        self._active = None
        self._settle(variable, problem, cause)
        self._pump()
        self.has_news()

    def _check_form(self, added: list[Step]) -> None:
        """A branch is plain text, or a chat made of messages alone."""
        in_message = False
        for step in added:
            if isinstance(step, CloseRole):
                in_message = False
                continue
            if isinstance(step, OpenRole):
                in_message = True
            elif isinstance(step, Text) and not step.text:
                continue
            if self._is_chat is None:
                self._is_chat = in_message
            elif self._is_chat and not in_message:
                raise RequestError("+=", step, "is outside of any message of the chat: use dl.user(…), dl.assistant(…)")
            elif in_message and not self._is_chat:
                raise RequestError("+=", step, "a message can't follow text that has no role")

    def _pump(self) -> None:
        while self._active is None and self._queue:
            step, variable = self._queue[0]
            if isinstance(step, Select) and len(self._queue) == 1 and self.failure is None:
                return  # its last token depends on what follows
            self._queue.popleft()
            if self.failure is not None:
                self._pass_over(step, variable)
            elif variable is not None:
                self._start(step, variable)
            elif isinstance(step, Text):
                self.transcript.write(step.text)
            elif isinstance(step, OpenRole):
                self.transcript.open_message(step.role)
            elif isinstance(step, CloseRole):
                self.transcript.close_message()

    def _start(self, step: Step | None, variable: Variable) -> None:
        try:
            if isinstance(step, Gen):
                generation = Generation(self, variable, step.value_type)
                generation.start(self._backend(), self._sampling(step, variable))
                self._active = generation
            elif isinstance(step, Select):
                scoring = ChoiceScoring(self, variable, step)
                scoring.start(self._backend(), self._following(step.choices[0]))
                self._active = scoring
        except Exception as error:  # whatever a backend raises, it is this variable's failure, and nothing hangs
            self._settle(variable, f"{type(error).__name__}: {error}", error)

    def _sampling(self, gen: Gen, variable: Variable) -> SamplingParams:
        params = SamplingParams(**{**self._defaults, **gen.options}) if self._defaults else gen.sampling
        if params.seed is not None:
            return params
        # A derived seed is valid, and `dataclasses.replace` would check all the other fields once more.
        seeded = object.__new__(SamplingParams)
        seeded.__dict__.update(params.__dict__, seed=derive_seed(self._seed, (self.name, variable.ordinal)))
        return seeded

    def _following(self, choice: str) -> str | Special | None:
        """What comes after the select that was just taken from the queue."""
        texts = []
        for step, _ in self._queue:
            if not isinstance(step, Text):
                break
            texts.append(step.text)
        if not texts and self._queue and isinstance(self._queue[0][0], CloseRole):
            return self.transcript.after_message(self._backend().tokenizer, choice)
        return "".join(texts) or None

    def _settle(self, variable: Variable, problem: str | None, cause: Exception | None) -> None:
        if problem is not None:
            variable.error = self.failure = self._error(variable.name, problem, cause)
        variable.settled = True

    def _skip(self, variable: Variable) -> None:
        assert self.failure is not None
        failed = f"variable {self.failure.variable!r}: " if self.failure.variable is not None else ""
        problem = f"was not reached after a failure ({failed}{self.failure.message})"
        variable.error = self._error(variable.name, problem, self.failure)
        variable.settled = True

    def _pass_over(self, step: Step | None, variable: Variable | None) -> None:
        """After a failure: skip what was to be written, but close the message that is open."""
        if variable is not None:
            self._skip(variable)
        elif isinstance(step, OpenRole):
            self._num_skipped_roles += 1
        elif isinstance(step, CloseRole) and self._num_skipped_roles:
            self._num_skipped_roles -= 1
        elif isinstance(step, CloseRole):
            self.transcript.close_message(drop_empty=True)

    def _error(self, variable: str | None, problem: str, cause: BaseException | None) -> ProgramError:
        error = ProgramError(self.name, variable, self.transcript.text, problem)
        error.__cause__ = cause
        return error
