"""One gen in flight."""

from collections import deque

from ..errors import DrawloomError
from ..runtime.request import Delta, Result
from ..runtime.sampling_params import SamplingParams
from .backend import Backend, Handle
from .operation import Owner
from .seen_ids import Prompt
from .value_type import ValueType
from .variable import Variable

__all__ = ["Generation"]


class Generation:
    def __init__(self, owner: Owner, variable: Variable, value_type: ValueType | None) -> None:
        self._owner = owner
        self.variable = variable
        self._value_type = value_type
        self._arrived: deque[Delta | DrawloomError] = deque()
        self._prompt: Prompt | None = None
        self._handle: Handle | None = None

    def start(self, backend: Backend, sampling: SamplingParams) -> None:
        """Raises what the backend refuses the request with."""
        self._prompt = self._owner.transcript.prompt(backend.tokenizer)
        constraint = self._value_type.constraint if self._value_type is not None else None
        self._handle = backend.submit(self._prompt.ids, sampling, constraint, on_delta=self._on_delta)
        self._owner.hub.num_in_flight += 1

    def advance(self) -> None:
        while self._arrived and self._handle is not None:
            news = self._arrived.popleft()
            if isinstance(news, DrawloomError):
                self._end("the request failed", news)
                return
            if news.text:
                self.variable.pieces.append(news.text)
                self._owner.transcript.write(news.text)
                self._owner.has_news()
            if news.result is not None:
                self._complete(news.result)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
            self._owner.hub.num_in_flight -= 1

    def _on_delta(self, news: Delta | DrawloomError) -> None:
        """On the backend's thread. First the news, then the look at `watched`: the reader does it in reverse."""
        self._arrived.append(news)
        if self._owner.watched or isinstance(news, DrawloomError) or news.result is not None:
            self._owner.hub.post(self)

    def _complete(self, result: Result) -> None:
        assert self._prompt is not None
        self._owner.transcript.keep(self._prompt, result.token_ids)
        self.variable.meta = {
            "token_ids": result.token_ids,
            "logprobs": result.logprobs,
            "top_logprobs": result.top_logprobs,
            "prompt_logprobs": result.prompt_logprobs,
            "finish_reason": result.finish_reason,
            "stop_reason": result.stop_reason,
            "seed": result.seed,
            "prompt_tokens": result.prompt_tokens,
            "completion_tokens": len(result.token_ids),
            "cached_tokens": result.cached_tokens,
            "spliced_tokens": self._prompt.num_spliced,
            "fingerprint": result.fingerprint,
        }
        if result.finish_reason == "cancelled":
            self._end("the request was cancelled", None)
            return
        cut = result.finish_reason == "length"
        try:
            self.variable.value = self._value_type.parse(result.text, cut) if self._value_type else result.text
        except Exception as error:  # validators are the user's code: whatever they raise, the value is refused
            ended = "the text was cut by the token limit before it was whole" if cut else "the text was refused"
            self._end(f"{ended} ({type(error).__name__}: {error})", error)
            return
        self._end(None, None)

    def _end(self, problem: str | None, cause: Exception | None) -> None:
        self._handle = None
        self._owner.hub.num_in_flight -= 1
        self._owner.end(self.variable, problem, cause)
