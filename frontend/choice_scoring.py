"""One select in flight: its choices are scored as continuations of one prompt."""

from collections import deque
from functools import partial

from ..errors import DrawloomError, RequestError
from ..runtime.chat_template import common_prefix
from ..runtime.request import Delta, Result
from ..runtime.sampling_params import SamplingParams
from ..runtime.tokenizer import Special, Tokenizer
from .backend import Backend, Handle
from .choice_scores import ChoiceLogprobs, decide
from .nodes import Select
from .operation import Owner
from .variable import Variable

__all__ = ["ChoiceScoring"]


class ChoiceScoring:
    """The first choice is scored alone, so that the others find the prompt in the backend's cache."""

    def __init__(self, owner: Owner, variable: Variable, select: Select) -> None:
        self._owner = owner
        self.variable = variable
        self._select = select
        self._arrived: deque[tuple[int, Delta | DrawloomError]] = deque()
        self._backend: Backend | None = None
        self._handles: list[Handle] = []
        self._results: dict[int, Result] = {}
        self._sequences: list[list[int]] = []
        self._first = 0  # from where on the sequences are scored: before it they agree with the prompt

    def start(self, backend: Backend, following: str | Special | None) -> None:
        """`following`: what comes after the choice; None is the end of the text. Raises what the backend refuses."""
        tokenizer = backend.tokenizer
        prompt_ids = self._owner.transcript.prompt(tokenizer).ids
        self._sequences = [self._spelled(tokenizer, choice, following) for choice in self._select.choices]
        self._first = min(common_prefix(prompt_ids, sequence) for sequence in self._sequences)
        if not self._first:
            raise RequestError("select", self._select.choices, "needs something to choose by before it")
        self._backend = backend
        self._submit(0)
        self._owner.hub.num_in_flight += 1

    def advance(self) -> None:
        while self._arrived and self._backend is not None:
            index, news = self._arrived.popleft()
            if isinstance(news, DrawloomError):
                self._end(f"scoring {self._select.choices[index]!r} failed", news)
            elif news.finish_reason == "cancelled":
                self._end("the request was cancelled", None)
            elif news.result is not None:
                self._results[index] = news.result
                self._go_on()

    def cancel(self) -> None:
        if self._backend is not None:
            self._backend = None
            self._owner.hub.num_in_flight -= 1
            for handle in self._handles:
                handle.cancel()

    def _go_on(self) -> None:
        if len(self._handles) < len(self._sequences):
            try:
                for index in range(1, len(self._sequences)):
                    self._submit(index)
            except Exception as error:
                self._end(f"scoring {self._select.choices[len(self._handles)]!r} was refused", error)
        elif len(self._results) == len(self._sequences):
            self._decide()

    def _submit(self, index: int) -> None:
        assert self._backend is not None
        sampling = SamplingParams(temperature=0.0, seed=0)
        on_delta = partial(self._on_delta, index)
        handle = self._backend.submit(self._sequences[index], sampling, on_delta=on_delta, score_from=self._first)
        self._handles.append(handle)

    def _on_delta(self, index: int, news: Delta | DrawloomError) -> None:
        self._arrived.append((index, news))
        if isinstance(news, DrawloomError) or news.result is not None:
            self._owner.hub.post(self)

    def _decide(self) -> None:
        choices = [
            ChoiceLogprobs(choice, self._sequences[index][self._first :], self._results[index].logprobs)
            for index, choice in enumerate(self._select.choices)
        ]
        self.variable.value, self.variable.meta = decide(self._select.method, choices)
        self.variable.pieces.append(self.variable.value)
        self._owner.transcript.write(self.variable.value)
        self._end(None, None)

    def _end(self, problem: str | None, cause: Exception | None) -> None:
        self.cancel()
        self._owner.end(self.variable, problem, cause)

    def _spelled(self, tokenizer: Tokenizer, choice: str, following: str | Special | None) -> list[int]:
        """The ids of the prompt with `choice` and the first one after it."""
        ids = self._owner.transcript.prompt(tokenizer, choice).ids
        if following is None:
            return [*ids, tokenizer.eos_ids[0]]
        if isinstance(following, Special):
            return [*ids, tokenizer.special_ids[following.name]]
        joint = self._owner.transcript.prompt(tokenizer, choice + following).ids
        if joint[: len(ids)] == ids and len(joint) > len(ids):
            return joint[: len(ids) + 1]
        return [*ids, tokenizer.encode(following)[0]]
