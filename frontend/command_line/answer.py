"""One request, read on the main thread, where Ctrl-C may strike between any two instructions."""

import threading
import time
from collections.abc import Iterator, Sequence

from ...errors import DrawloomError
from ...grammar import Constraint
from ...runtime.engine import Engine
from ...runtime.request import Delta, Result
from ...runtime.sampling_params import SamplingParams
from ..value_type import ValueType

__all__ = ["Answer", "is_whole"]


class Answer:
    """Submitted when it is made. What arrives is kept, so that an interrupted reader can go on reading."""

    def __init__(
        self, engine: Engine, prompt_ids: Sequence[int], sampling: SamplingParams, constraint: Constraint | None = None
    ) -> None:
        self._arrived: list[Delta | DrawloomError] = []
        self._num_read = 0
        self._news = threading.Event()
        self._start = self._end = time.perf_counter()
        self._handle = engine.submit(prompt_ids, sampling, constraint, on_delta=self._on_delta)

    def pieces(self) -> Iterator[str]:
        """The text as it is committed, to its end. Raises what the request failed with."""
        while True:
            while self._num_read < len(self._arrived):
                delta = self._arrived[self._num_read]
                self._num_read += 1
                if isinstance(delta, DrawloomError):
                    raise delta
                if delta.text:
                    yield delta.text
            if self._has_ended:
                return
            self._wait()

    def finish(self) -> Result:
        """The whole result, once it is there."""
        while not self._has_ended:
            self._wait()
        last = self._arrived[-1]
        if isinstance(last, DrawloomError):
            raise last
        assert last.result is not None
        return last.result

    def cancel(self) -> None:
        """The request ends soon, with what it has."""
        self._handle.cancel()

    def speed(self) -> float:
        """Tokens a second, prefill included."""
        return len(self.finish().token_ids) / max(self._end - self._start, 1e-9)

    @property
    def _has_ended(self) -> bool:
        last = self._arrived[-1] if self._arrived else None
        return isinstance(last, DrawloomError) or last is not None and last.result is not None

    def _wait(self) -> None:
        self._news.wait()
        self._news.clear()  # what arrives from here on is seen by the caller, who looks again

    def _on_delta(self, delta: Delta | DrawloomError) -> None:
        self._end = time.perf_counter()
        self._arrived.append(delta)
        self._news.set()


def is_whole(result: Result, wanted: ValueType | None) -> bool:
    """Whether the text is what the constraint asks: one that the token limit cut may not be."""
    if wanted is None or result.finish_reason != "length":
        return True
    try:
        wanted.parse(result.text, True)
    except Exception:  # json, jsonschema_rs and Pydantic each refuse in their own way
        return False
    return True
