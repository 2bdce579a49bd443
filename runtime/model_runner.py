"""Turns a plan into tensors, runs the model, and returns the logits that somebody needs."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..kernels.dispatch import plan_attention
from .batch import ForwardInput
from .models.deepseek import Model
from .plan import Chunk, Plan
from .request import TopLogprobs
from .sampler import token_logprobs
from .sequence import Sequence

__all__ = ["ModelRunner", "StepOutput"]

_SCORE_ROWS = 64  # rows of logits at a time, so that scoring a long prompt stays small


@dataclass(frozen=True, slots=True)
class StepOutput:
    """`logits` [sampled sequences, vocabulary] fp32, in plan order; `scores`: (position, log-probability, top)."""

    logits: Tensor
    scores: dict[Sequence, list[tuple[int, float, TopLogprobs | None]]]


class ModelRunner:
    """Owns the latent cache, [layers, pages, page_size, latent + rotary key]."""

    def __init__(self, model: Model, *, num_pages: int, page_size: int) -> None:
        self._model = model
        self._page_size = page_size
        self._cache = _untouched_zeros((model.num_layers, num_pages, page_size, model.cache_width), model.dtype)

    def prepare(self, plan: Plan) -> ForwardInput:
        """The tensors of the step. All of it is Python, so do it before other threads start to work."""
        size = self._page_size
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        for chunk in plan.chunks:
            end, pages = chunk.start + chunk.length, chunk.sequence.pages
            token_ids += chunk.sequence.tokens[chunk.start : end]
            positions += range(chunk.start, end)
            slots += [pages[position // size] * size + position % size for position in range(chunk.start, end)]
        attention = plan_attention(
            [chunk.sequence.pages for chunk in plan.chunks],
            [chunk.start + chunk.length for chunk in plan.chunks],
            [chunk.length for chunk in plan.chunks],
            page_size=size,
            heads_per_group=self._model.heads_per_group,
        )
        return ForwardInput(_tensor(token_ids), _tensor(positions), _tensor(slots), attention)

    def forward(self, plan: Plan, inputs: ForwardInput) -> StepOutput:
        for copy in plan.copies:
            self._cache[:, copy.target, : copy.num_tokens] = self._cache[:, copy.source, : copy.num_tokens]
        hidden = self._model.forward(inputs, self._cache)
        return StepOutput(self._sample_logits(plan, hidden), self._scores(plan, hidden))

    def _sample_logits(self, plan: Plan, hidden: Tensor) -> Tensor:
        rows = [first + chunk.length - 1 for first, chunk in _with_first_rows(plan) if chunk.samples]
        return self._model.logits(hidden.index_select(0, _tensor(rows)))

    def _scores(self, plan: Plan, hidden: Tensor) -> dict[Sequence, list[tuple[int, float, TopLogprobs | None]]]:
        scores: dict[Sequence, list[tuple[int, float, TopLogprobs | None]]] = {}
        for first, chunk in _with_first_rows(plan):
            rows = chunk.scored_rows
            for start in range(rows.start, rows.stop, _SCORE_ROWS):
                part = range(start, min(start + _SCORE_ROWS, rows.stop))
                logits = self._model.logits(hidden[first + part.start : first + part.stop])
                targets = [chunk.sequence.tokens[chunk.start + row + 1] for row in part]
                found = token_logprobs(logits, targets, chunk.sequence.request.sampling.top_logprobs)
                scores.setdefault(chunk.sequence, []).extend(
                    (chunk.start + row + 1, logprob, top) for row, (logprob, top) in zip(part, found, strict=True)
                )
        return scores


def _untouched_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros, since masked keys must still be finite numbers. The system hands them out page by page at first use.

    Writing a gigabyte of zeros, as `torch.zeros` does, takes a second of every start.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    memory = np.zeros(num_bytes + 64, dtype=np.uint8)
    start = -memory.ctypes.data % 64  # as PyTorch aligns its own
    return torch.from_numpy(memory[start : start + num_bytes]).view(dtype).view(shape)


def _tensor(numbers: list[int]) -> Tensor:
    return torch.from_numpy(np.array(numbers, dtype=np.int64))


def _with_first_rows(plan: Plan) -> list[tuple[int, Chunk]]:
    """Each chunk with the index of its first row in the flat batch."""
    pairs: list[tuple[int, Chunk]] = []
    first = 0
    for chunk in plan.chunks:
        pairs.append((first, chunk))
        first += chunk.length
    return pairs
