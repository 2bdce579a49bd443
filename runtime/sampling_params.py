"""What a caller may ask of the sampler, checked when it is written down."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from operator import index as as_integer
from typing import Literal

from ..errors import RequestError
from .logit_bias import LogitBias
from .seeds import SEED_LIMIT

__all__ = ["SamplingParams", "check_against_vocabulary"]

# Within these bounds a finite logit stays finite in fp32 after bias, penalties and division by the temperature.
_LEAST_TEMPERATURE, _MOST_TEMPERATURE = 1e-6, 1e6
_MOST_BIAS = 1e30
_LEAST_REPETITION, _MOST_REPETITION = 0.01, 100.0
_MOST_PENALTY = 2.0
# Larger than any vocabulary, any context, any sensible request: a number beyond them is a mistake, not a wish.
_MOST_TOP_K = 2**20
_MOST_TOKENS = 2**31 - 1
_MOST_SAMPLES = 1024
_MOST_TOP_LOGPROBS = 1000


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How the tokens of one request are chosen. Immutable and hashable; `dataclasses.replace` makes variants.

    A token is drawn from the model's distribution after, in this order: logit_bias, penalties, min_tokens, the
    grammar's bitmask, temperature, top_k, top_p, min_p. Ties, in probability or in the draw, go to the smaller id.

    temperature: 0 takes the most probable token; else from 1e-6 to 1e6.
    top_p: keep the smallest set of most probable tokens whose probabilities, after top_k, sum to at least `top_p`.
    top_k: keep that many most probable tokens; 0, or as many as the vocabulary holds, keeps all.
    min_p: keep tokens at least `min_p` times as probable as the most probable one.
    presence_penalty, frequency_penalty: subtracted from the logit of each token of the output, once, and once for each
        time it occurs there; from -2 to 2.
    repetition_penalty: divides a positive logit, and multiplies a negative one, of each token of prompt and output.
    logit_bias: token id -> number added to its logit.
    seed: 0 <= seed < 2**63; None draws one from the operating system. The result reports it.
    max_tokens, min_tokens: new tokens, EOS included. Fewer than `min_tokens` bar EOS and `stop_token_ids`, and no stop
        string ends the text. A grammar wins over `min_tokens`.
    stop: strings that end the text and are left out of it; one string, or any number of them.
    stop_token_ids: ids that end the text.
    ignore_eos: EOS doesn't end the text. A grammar wins over it.
    n: independent samples of one prompt.
    logprobs: report each token's log-probability at temperature 1 after bias, penalties and bitmask, before top_k,
        top_p and min_p; "model" reports that of the model's own logits.
    top_logprobs: also report that many most probable tokens at each position.
    prompt_logprobs: report the model's own log-probability of each token of the prompt.

    Raises RequestError with the field and its value when one is out of range or of the wrong type.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    max_tokens: int = 256
    min_tokens: int = 0
    stop: str | tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    n: int = 1
    logprobs: bool | Literal["model"] = True
    top_logprobs: int = 0
    prompt_logprobs: bool = False

    def __post_init__(self) -> None:
        self._check_distribution()
        self._check_lengths()
        for name in ("ignore_eos", "prompt_logprobs"):
            _check_flag(name, getattr(self, name))
        if self.logprobs != "model":
            _check_flag("logprobs", self.logprobs, "True, False or 'model'")
        if self.top_logprobs and not self.logprobs and not self.prompt_logprobs:
            raise RequestError("top_logprobs", self.top_logprobs, "needs logprobs or prompt_logprobs")

    def _check_distribution(self) -> None:
        temperature = self._number("temperature", 0.0, _MOST_TEMPERATURE)
        if 0.0 < temperature < _LEAST_TEMPERATURE:
            raise RequestError("temperature", temperature, f"must be at least {_LEAST_TEMPERATURE}, or 0 for greedy")
        if self._number("top_p", 0.0, 1.0) == 0.0:
            raise RequestError("top_p", self.top_p, "must be above 0 and at most 1; temperature=0 or top_k=1 is greedy")
        self._number("min_p", 0.0, 1.0)
        self._number("presence_penalty", -_MOST_PENALTY, _MOST_PENALTY)
        self._number("frequency_penalty", -_MOST_PENALTY, _MOST_PENALTY)
        self._number("repetition_penalty", _LEAST_REPETITION, _MOST_REPETITION)
        self._integer("top_k", 0, _MOST_TOP_K, "; 0 keeps all")
        object.__setattr__(self, "logit_bias", _biases(self.logit_bias))

    def _check_lengths(self) -> None:
        if self.seed is not None:
            self._integer("seed", 0, SEED_LIMIT - 1)
        max_tokens = self._integer("max_tokens", 1, _MOST_TOKENS)
        if self._integer("min_tokens", 0, _MOST_TOKENS) > max_tokens:
            raise RequestError("min_tokens", self.min_tokens, f"is more than max_tokens={max_tokens}")
        self._integer("n", 1, _MOST_SAMPLES)
        self._integer("top_logprobs", 0, _MOST_TOP_LOGPROBS)
        object.__setattr__(self, "stop", _stop_strings(self.stop))
        object.__setattr__(self, "stop_token_ids", _stop_ids(self.stop_token_ids))

    def _number(self, name: str, least: float, most: float) -> float:
        number = _number(name, getattr(self, name), least, most)
        object.__setattr__(self, name, number)
        return number

    def _integer(self, name: str, least: int, most: int, hint: str = "") -> int:
        number = _integer(name, getattr(self, name), least, most, hint)
        object.__setattr__(self, name, number)
        return number


def check_against_vocabulary(params: SamplingParams, size: int) -> None:
    """Raise RequestError if `params` names a token id that a vocabulary of `size` ids doesn't have."""
    for name in ("logit_bias", "stop_token_ids"):
        for token_id in getattr(params, name):
            if token_id >= size:
                raise RequestError(name, token_id, f"is outside the {size} ids of the vocabulary")


def _number(name: str, value: object, least: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise RequestError(name, value, "must be a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not least <= number <= most:  # refuses NaN as well
        raise RequestError(name, value, f"must be a number from {least:g} to {most:g}")
    return number


def _integer(name: str, value: object, least: int, most: int, hint: str = "") -> int:
    try:
        number = as_integer(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise RequestError(name, value, "must be an integer")
    if not least <= number <= most:
        raise RequestError(name, value, f"must be an integer from {least} to {most}{hint}")
    return number


def _check_flag(name: str, value: object, choices: str = "True or False") -> None:
    if not isinstance(value, bool):
        raise RequestError(name, value, f"must be {choices}")


def _biases(given: object) -> LogitBias:
    if isinstance(given, LogitBias):
        return given
    if not isinstance(given, Mapping):
        raise RequestError("logit_bias", given, "must map token ids to numbers")
    biases: dict[int, float] = {}
    for token_id, bias in given.items():
        checked = _integer("logit_bias", token_id, 0, _MOST_TOKENS, " (a token id)")
        biases[checked] = _number("logit_bias", bias, -_MOST_BIAS, _MOST_BIAS)
    return LogitBias(biases)


def _stop_strings(given: object) -> tuple[str, ...]:
    stops = (given,) if isinstance(given, str) else _items("stop", given, "a string or a sequence of strings")
    for stop in stops:
        if not isinstance(stop, str) or not stop:
            raise RequestError("stop", stop, "each stop must be a non-empty string")
    return tuple(dict.fromkeys(str(stop) for stop in stops))


def _stop_ids(given: object) -> tuple[int, ...]:
    ids = _items("stop_token_ids", given, "a sequence of token ids")
    return tuple(dict.fromkeys(_integer("stop_token_ids", token_id, 0, _MOST_TOKENS) for token_id in ids))


def _items(name: str, given: object, expected: str) -> tuple[object, ...]:
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise RequestError(name, given, f"must be {expected}")
    return tuple(given)
