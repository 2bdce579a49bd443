"""Draw one token a row by seeded Gumbel-max, with all the noise computed in float64."""

import torch
from torch import Tensor

from .philox import gumbel

__all__ = ["adjust_logits", "sample_tokens"]


def adjust_logits(
    logits: Tensor, rows: Tensor, ids: Tensor, bias: Tensor, repetition: Tensor, subtracted: Tensor
) -> None:
    """Change `logits` fp32 [rows, vocabulary] in place at the pairs (rows[i], ids[i]); all lists [n]."""
    x = logits[rows, ids] + bias
    logits[rows, ids] = torch.where(x > 0, x / repetition, x * repetition) - subtracted


def sample_tokens(
    logits: Tensor, temperatures: Tensor, seeds: Tensor, positions: Tensor, bitmask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(token ids int64 [rows], log-probabilities fp32 [rows]); -1 and NaN for a row without a finite largest logit."""
    rows, size = logits.shape
    ids = torch.full((rows,), -1, dtype=torch.int64)
    logprobs = torch.full((rows,), torch.nan)
    tokens = torch.arange(size)
    for row in range(rows):
        x = logits[row]
        if bitmask is not None:
            allowed = (bitmask[row, tokens // 32] >> (tokens % 32)) & 1
            x = x.masked_fill(allowed == 0, -torch.inf)
        if not x.max().isfinite():
            continue
        scores = x
        if temperatures[row] > 0:
            scores = x / temperatures[row] + gumbel(seeds[row : row + 1], positions[row : row + 1], tokens)
        ids[row] = scores.argmax()
        logprobs[row] = torch.log_softmax(x, dim=-1)[ids[row]]
    return ids, logprobs
