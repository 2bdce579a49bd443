"""The engine's face: prompts in, results and streams out."""

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncGenerator
from collections.abc import Sequence as Items
from concurrent.futures import Future, wait
from itertools import count
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, overload

from ..errors import DrawloomError, EngineError, RequestError
from ..grammar import Constraint
from .admission import Admission, Prompt, check_types
from .detokenizer import Detokenizer
from .engine_config import EngineConfig
from .loading import Loaded, load_parts, start_loop
from .request import Delta, OnDelta, Request, Result, resolver
from .sampling_params import SamplingParams
from .sequence import Sequence
from .step_loop import StepLoop
from .tokenizer import Tokenizer

__all__ = ["Engine", "RequestHandle"]


class RequestHandle:
    """A submitted request."""

    def __init__(self, loop: StepLoop, sequence: Sequence) -> None:
        self._loop = loop
        self._sequence = sequence

    def cancel(self) -> None:
        """End the request before the next step; it then gets a last delta with `finish_reason` "cancelled"."""
        try:
            self._loop.call(lambda: self._loop.scheduler.cancel(self._sequence))
        except EngineError:
            pass  # a closed engine has cancelled everything already


class Engine:
    """Runs a model. One thread of its own steps it; every method may be called from any thread.

    Options as in :class:`EngineConfig`. Raises `ModelError` if the model can't be loaded and `RequestError` for an
    option that is out of range. Close it, or use it as a context manager (also with `async with`).
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        device: Literal["auto", "cpu"] = "auto",
        dtype: Literal["auto", "float32", "bfloat16"] = "auto",
        load: Literal["auto"] = "auto",
        num_threads: int | None = None,
        page_size: int = 64,
        kv_bytes: int | None = None,
        max_batch_tokens: int = 512,
        max_sequences: int = 128,
        speculation: Literal["auto"] | None = "auto",
        invariant: bool = True,
        progress: bool = True,
    ) -> None:
        config = EngineConfig(
            model=model,
            device=device,
            dtype=dtype,
            load=load,
            num_threads=num_threads,
            page_size=page_size,
            kv_bytes=kv_bytes,
            max_batch_tokens=max_batch_tokens,
            max_sequences=max_sequences,
            speculation=speculation,
            invariant=invariant,
            progress=progress,
        )
        self._start(load_parts(config), config)

    @classmethod
    def from_model(cls, loaded: Loaded, config: EngineConfig) -> Self:
        """An engine over a model that is in memory already. `config.model` and `config.dtype` are not looked at."""
        engine = cls.__new__(cls)
        engine._start(loaded, config)
        return engine

    def _start(self, loaded: Loaded, config: EngineConfig) -> None:
        self.config = config
        self.tokenizer: Tokenizer = loaded.tokenizer
        self._loop = start_loop(loaded, config)
        max_len = min(loaded.model.max_positions, self._loop.scheduler.cache.num_tokens)
        self._admission = Admission(self.tokenizer, vocab_size=loaded.model.vocab_size, max_len=max_len)
        self._index = count()
        self._closer = weakref.finalize(self, self._loop.close)

    # Whole results

    @overload
    def generate(
        self, prompt: str | list[int], sampling: SamplingParams | None = None, constraint: Constraint | None = None
    ) -> Result: ...

    @overload
    def generate(
        self,
        prompt: list[str] | list[list[int]],
        sampling: SamplingParams | Items[SamplingParams] | None = None,
        constraint: Constraint | Items[Constraint | None] | None = None,
    ) -> list[Result]: ...

    def generate(self, prompt: Any, sampling: Any = None, constraint: Any = None) -> Any:
        """Run one prompt (text or token ids) or a list of them, and wait.

        `sampling` and `constraint` hold for all prompts, or are lists with one for each. Returns a result for each
        prompt, in order; with `n` > 1 a list of n results for each. What can't run is refused with `RequestError` or
        `ConstraintError` before anything starts. A request that fails raises its error once the others have ended.
        """
        self._loop.check_may_wait()
        groups, single = self._jobs(prompt, sampling, constraint)
        futures = [job.future for group in groups for job in group]
        handles = self._launch([job.request for group in groups for job in group])
        try:
            wait(futures)
        except BaseException:
            _cancel(handles)
            raise
        return _shaped([[job.future.result() for job in group] for group in groups], single)

    async def generate_async(self, prompt: Any, sampling: Any = None, constraint: Any = None) -> Any:
        """:meth:`generate` inside an event loop. Cancelling the task cancels its requests."""
        groups, single = await asyncio.to_thread(self._jobs, prompt, sampling, constraint)
        futures = [asyncio.wrap_future(job.future) for group in groups for job in group]
        handles = self._launch([job.request for group in groups for job in group])
        try:
            await asyncio.wait(futures)
        except BaseException:
            _cancel(handles)
            raise
        return _shaped([[job.future.result() for job in group] for group in groups], single)

    def score(self, prefix: Prompt, endings: Items[Prompt]) -> list[Result]:
        """Log-probabilities of each of `endings` after `prefix`: `Result.logprobs`, one for each of its tokens.

        Prefix and ending are encoded apart. The prefix is computed once.
        """
        self._loop.check_may_wait()
        start = self._admission.encode(prefix, "prefix")
        if isinstance(endings, str | bytes) or not isinstance(endings, Items):
            raise RequestError("endings", endings, "must be a list of texts or of token ids")
        jobs: list[_Job] = []
        for index, ending in enumerate(endings):
            future: Future[Result] = Future()
            prompt_ids = start + self._admission.encode_ending(ending, f"endings[{index}]")
            jobs.append(_Job(self._admission.score_request(prompt_ids, len(start), resolver(future)), future))
        handles = self._launch([job.request for job in jobs])
        try:
            wait([job.future for job in jobs])
        except BaseException:
            _cancel(handles)
            raise
        return [job.future.result() for job in jobs]

    # Streams

    async def stream(
        self, prompt: Prompt, sampling: SamplingParams | None = None, constraint: Constraint | None = None
    ) -> AsyncGenerator[Delta, None]:
        """Deltas of one request as they are committed; the last one has `finish_reason` and `result`.

        Closing the generator (`aclose`) cancels the request. `n` must be 1.
        """
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[Delta | DrawloomError] = asyncio.Queue()

        def on_delta(delta: Delta | DrawloomError) -> None:
            loop.call_soon_threadsafe(queue.put_nowait, delta)

        handle = await asyncio.to_thread(self._submit_prompt, prompt, sampling, constraint, on_delta)
        try:
            while True:
                delta = await queue.get()
                if isinstance(delta, DrawloomError):
                    raise delta
                yield delta
                if delta.finish_reason is not None:
                    return
        finally:
            handle.cancel()

    def submit(
        self,
        prompt_ids: Items[int],
        sampling: SamplingParams,
        constraint: Constraint | None = None,
        *,
        on_delta: OnDelta,
        score_from: int | None = None,
    ) -> RequestHandle:
        """Start one request and return at once. `on_delta` gets every delta, or one error, on the engine's thread.

        It must be quick, since no step runs meanwhile. `score_from`: generate nothing; the result's log-probabilities
        are those of `prompt_ids[score_from:]`.
        """
        if score_from is None:
            return self._submit_prompt(prompt_ids, sampling, constraint, on_delta)
        request = self._admission.score_request(self._admission.encode(prompt_ids), score_from, on_delta)
        return self._launch([request])[0]

    # State

    @property
    def fingerprint(self) -> str:
        """What the bits of results depend on besides their requests."""
        return self._loop.scheduler.fingerprint

    def metrics(self) -> dict[str, int]:
        """Counters since the start and the present state, flat. Tokens: prompt, cached, computed, generated.

        `grammar_cache.*` tells of compiled constraints: hits, misses, evictions, entries, bytes (an estimate), ...
        """
        scheduler = self._loop.scheduler
        pages = {f"pages.{state}": number for state, number in scheduler.cache.counts().items()}
        now = {"running": scheduler.num_running, "waiting": scheduler.num_waiting}
        return {**scheduler.counters, **now, **pages, **self._admission.metrics()}

    def flush_cache(self) -> None:
        """Forget every cached prefix that no running request uses."""
        self._loop.check_may_wait()
        done = threading.Event()

        def flush() -> None:
            self._loop.scheduler.cache.flush()
            done.set()

        self._loop.call(flush)
        done.wait()

    def close(self) -> None:
        """Cancel what runs and release the thread. Safe to call twice."""
        self._closer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    # Inside

    def _jobs(self, prompt: Any, sampling: Any, constraint: Any) -> tuple[list[list["_Job"]], bool]:
        """For each prompt one job for each of its samples, all checked; and whether a single prompt was given."""
        if not isinstance(prompt, Items):
            raise RequestError("prompt", prompt, "must be text, token ids, or a list of either")
        single = isinstance(prompt, str) or not prompt or any(hasattr(part, "__index__") for part in prompt)
        prompts = [prompt] if single else list(prompt)
        samplings = _one_each("sampling", sampling if sampling is not None else SamplingParams(), len(prompts))
        constraints = _one_each("constraint", constraint, len(prompts))
        groups: list[list[_Job]] = []
        for index, (one, params, bound) in enumerate(zip(prompts, samplings, constraints, strict=True)):
            check_types(params, bound)
            futures: list[Future[Result]] = [Future() for _ in range(params.n)]
            ids = self._admission.encode(one, "prompt" if single else f"prompt[{index}]")
            requests = self._admission.requests(ids, params, bound, [resolver(future) for future in futures])
            groups.append([_Job(request, future) for request, future in zip(requests, futures, strict=True)])
        return groups, single

    def _submit_prompt(
        self, prompt: Prompt, sampling: SamplingParams | None, constraint: Constraint | None, on_delta: OnDelta
    ) -> RequestHandle:
        params = sampling if sampling is not None else SamplingParams()
        check_types(params, constraint)
        if params.n != 1:
            raise RequestError("n", params.n, "must be 1 for a stream")
        return self._launch(self._admission.requests(self._admission.encode(prompt), params, constraint, [on_delta]))[0]

    def _launch(self, requests: list[Request]) -> list[RequestHandle]:
        """Hand over all requests at once, so that they are scheduled together."""
        sequences = [self._sequence(request) for request in requests]

        def add_all() -> None:
            for sequence in sequences:
                self._loop.scheduler.add(sequence)

        self._loop.call(add_all)
        return [RequestHandle(self._loop, sequence) for sequence in sequences]

    def _sequence(self, request: Request) -> Sequence:
        tokenizer = self.tokenizer
        return Sequence(
            request,
            next(self._index),
            max_len=self._admission.max_len,
            eos_ids=frozenset(tokenizer.eos_ids),
            detokenizer=Detokenizer(tokenizer.vocabulary),
        )


class _Job(NamedTuple):
    request: Request
    future: "Future[Result]"


def _cancel(handles: Items[RequestHandle]) -> None:
    for handle in handles:
        handle.cancel()


def _one_each(field: str, given: Any, number: int) -> list[Any]:
    if not isinstance(given, (list, tuple)):
        return [given] * number
    if len(given) != number:
        raise RequestError(field, len(given), f"needs one for each of the {number} prompts")
    return list(given)


def _shaped(groups: list[list[Result]], single: bool) -> Any:
    shaped = [group[0] if len(group) == 1 else group for group in groups]
    return shaped[0] if single else shaped
