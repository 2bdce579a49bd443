"""What a caller asks and what comes back. All of it is immutable."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal

from ..errors import DrawloomError
from ..grammar import CompiledGrammar
from .sampling_params import SamplingParams

__all__ = ["Delta", "FinishReason", "OnDelta", "Request", "Result", "TopLogprobs", "resolver"]

FinishReason = Literal["stop", "length", "tool_calls", "cancelled"]
TopLogprobs = list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one request.

    text: without the stop string or EOS. token_ids: every committed id, EOS included, up to and including the token
    that completes a stop string. logprobs: one per id, fp32 log-softmax after bias, penalties and bitmask, at
    temperature 1, before top-k, top-p and min-p; empty if `logprobs` was False. prompt_logprobs: the model's own, first
    entry None; None where they were not asked for. stop_reason: the stop string or id that ended the text. seed: what
    replays this result. cached_tokens: prompt tokens read from the cache when the request first ran. fingerprint: what
    the bits of this result depend on besides the request.
    """

    text: str
    token_ids: list[int]
    logprobs: list[float]
    finish_reason: FinishReason
    stop_reason: str | int | None
    seed: int
    fingerprint: str
    prompt_tokens: int
    cached_tokens: int
    top_logprobs: list[TopLogprobs] | None = None
    prompt_logprobs: list[float | None] | None = None
    prompt_top_logprobs: list[TopLogprobs | None] | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of a stream. The last one carries `finish_reason` and the whole `result`."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    result: Result | None = None


OnDelta = Callable[[Delta | DrawloomError], None]


def resolver(future: "Future[Result]") -> OnDelta:
    """The receiver that gives `future` the whole result, or the error."""

    def resolve(delta: Delta | DrawloomError) -> None:
        if isinstance(delta, DrawloomError):
            future.set_exception(delta)
        elif delta.result is not None:
            future.set_result(delta.result)

    return resolve


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One sequence to run. `score_from`: generate nothing, give the log-probabilities of the prompt from there on."""

    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    seed: int
    on_delta: OnDelta = field(repr=False)
    grammar: CompiledGrammar | None = None
    score_from: int | None = None
    priority: int = 0
