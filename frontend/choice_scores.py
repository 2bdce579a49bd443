"""The decision rules of `select`."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ..errors import RequestError

__all__ = ["ChoiceLogprobs", "check_method", "decide"]

_METHODS = ("complete_text", "token_length_normalized")
_LATER = ("greedy_token_selection", "unconditional_likelihood_normalized")


@dataclass(frozen=True, slots=True)
class ChoiceLogprobs:
    """The ids that spell one choice, then the one that ends it, and the log-probability of each."""

    choice: str
    token_ids: list[int]
    logprobs: list[float]

    def score(self, method: str) -> float:
        if method == "complete_text":
            return sum(self.logprobs)
        return fmean(self.logprobs[:-1])


def check_method(method: str) -> str:
    if method in _LATER:
        raise RequestError("method", method, f"is not supported yet; there are {', '.join(_METHODS)}")
    if method not in _METHODS:
        raise RequestError("method", method, f"must be one of {', '.join(_METHODS)}")
    return method


def decide(method: str, choices: Sequence[ChoiceLogprobs]) -> tuple[str, dict[str, Any]]:
    """The best choice (the earlier one of equals) and what `get_meta_info` tells of all of them."""
    scores = {one.choice: one.score(method) for one in choices}
    meta = {
        "method": method,
        "scores": scores,
        "token_ids": {one.choice: one.token_ids for one in choices},
        "logprobs": {one.choice: one.logprobs for one in choices},
    }
    return max(scores, key=scores.__getitem__), meta
