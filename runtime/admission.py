"""From what a caller gives to a request that can run: encoding, checks, seeds, the compiled grammar."""

from collections.abc import Callable
from collections.abc import Sequence as Items
from operator import index as as_integer
from typing import Any

from ..errors import DrawloomError, PromptTooLong, RequestError
from ..grammar import Constraint, GrammarCompiler
from .request import Delta, Request
from .sampling_params import SamplingParams, check_against_vocabulary
from .seeds import draw_seed, sample_seed
from .tokenizer import Tokenizer

__all__ = ["Admission", "Prompt", "check_types"]

Prompt = str | Items[int]


class Admission:
    """Refuses what can't run before it reaches the engine. `max_len`: tokens of prompt and output together."""

    def __init__(self, tokenizer: Tokenizer, *, vocab_size: int, max_len: int) -> None:
        self.max_len = max_len
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._compiler: GrammarCompiler | None = None

    def encode(self, prompt: Prompt, field: str = "prompt") -> tuple[int, ...]:
        """Token ids of a prompt. Text is plain: no part of it becomes a special token, but BOS is put before it.

        Errors name `field`.
        """
        if isinstance(prompt, str):
            bos = self._tokenizer.bos_id if self._tokenizer.add_bos else None
            ids = ([] if bos is None else [bos]) + self._tokenizer.encode(prompt)
        elif isinstance(prompt, bytes | bytearray) or not isinstance(prompt, Items):
            raise RequestError(field, prompt, "must be text or a list of token ids")
        else:
            ids = [self._checked_id(f"{field}[{position}]", token_id) for position, token_id in enumerate(prompt)]
        if not ids:
            raise RequestError(field, prompt, "is empty")
        return tuple(ids)

    def encode_ending(self, ending: Prompt, field: str) -> tuple[int, ...]:
        """Token ids of a text that follows another: without BOS."""
        ids = tuple(self._tokenizer.encode(ending)) if isinstance(ending, str) else self.encode(ending, field)
        if not ids:
            raise RequestError(field, ending, "is empty")
        return ids

    def requests(
        self,
        prompt_ids: tuple[int, ...],
        sampling: SamplingParams,
        constraint: Constraint | None,
        on_deltas: Items[Callable[[Delta | DrawloomError], None]],
    ) -> list[Request]:
        """One request for each of `sampling.n` samples. Sample 0 has the request's own seed."""
        self._check(prompt_ids, sampling, constraint)
        grammar = self._grammar_compiler().compile(constraint) if constraint is not None else None
        seed = draw_seed() if sampling.seed is None else sampling.seed
        return [
            Request(prompt_ids, sampling, sample_seed(seed, sample), on_delta, grammar)
            for sample, on_delta in zip(range(sampling.n), on_deltas, strict=True)
        ]

    def score_request(
        self, prompt_ids: tuple[int, ...], score_from: int, on_delta: Callable[[Delta | DrawloomError], None]
    ) -> Request:
        """A request that generates nothing and gives log-probabilities from position `score_from` on."""
        if not 0 <= score_from < len(prompt_ids):
            raise RequestError("score_from", score_from, f"must lie within the {len(prompt_ids)} prompt tokens")
        if len(prompt_ids) < 2:
            raise RequestError("prompt", prompt_ids, "one token alone has no log-probability")
        if len(prompt_ids) > self.max_len:
            raise PromptTooLong(len(prompt_ids), self.max_len)
        sampling = SamplingParams(temperature=0.0, seed=0)
        return Request(prompt_ids, sampling, 0, on_delta, score_from=score_from)

    def _check(self, prompt_ids: tuple[int, ...], sampling: SamplingParams, constraint: Constraint | None) -> None:
        check_against_vocabulary(sampling, self._vocab_size)
        if len(prompt_ids) >= self.max_len:
            raise PromptTooLong(len(prompt_ids), self.max_len - 1)
        if constraint is not None:
            for field in ("stop", "stop_token_ids"):
                if getattr(sampling, field):
                    message = "can't be combined with a constraint: the grammar decides where the text ends"
                    raise RequestError(field, getattr(sampling, field), message)

    def _grammar_compiler(self) -> GrammarCompiler:
        if self._compiler is None:
            self._compiler = GrammarCompiler(self._tokenizer.vocabulary)
        return self._compiler

    def _checked_id(self, field: str, token_id: Any) -> int:
        try:
            checked = as_integer(token_id)
        except TypeError:
            raise RequestError(field, token_id, "is no token id") from None
        if isinstance(token_id, bool):
            raise RequestError(field, token_id, "is no token id")
        if not 0 <= checked < self._vocab_size:
            raise RequestError(field, token_id, f"is outside the {self._vocab_size} ids of the model")
        return checked


def check_types(sampling: object, constraint: object) -> None:
    """Raise `RequestError` where a dict, say, was given in place of an object of ours."""
    if not isinstance(sampling, SamplingParams):
        raise RequestError("sampling", sampling, "must be SamplingParams(…)")
    if constraint is not None and not isinstance(constraint, Constraint):
        raise RequestError("constraint", constraint, "must be JSONSchema(…), Regex(…), Choice(…) or EBNF(…)")
