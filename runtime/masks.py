"""Fills the token bitmasks of one step on a thread of its own, while the forward pass runs."""

from collections.abc import Sequence as Items
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..errors import DrawloomError, EngineError
from ..grammar import fill_bitmasks
from .sequence import Sequence

__all__ = ["MaskFiller", "Masks"]


@dataclass(frozen=True, slots=True)
class Masks:
    """`bitmask` int32 [rows, ceil(vocabulary / 32)], bit set: allowed; None if no row has a grammar."""

    bitmask: Tensor | None
    errors: dict[Sequence, DrawloomError]


class MaskFiller:
    """One worker thread: the work is native and lets go of the interpreter lock, so one keeps up with a forward."""

    def __init__(self, vocab_size: int) -> None:
        self._words = -(-vocab_size // 32)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="drawloom-masks")

    def start(self, sequences: Items[Sequence]) -> "Future[Masks]":
        """Begin with one row for each of `sequences`. Their matchers must not be touched until the result is there."""
        if all(sequence.matcher is None for sequence in sequences):
            future: Future[Masks] = Future()
            future.set_result(Masks(None, {}))
            return future
        return self._worker.submit(self._fill, sequences)

    def close(self) -> None:
        self._worker.shutdown()

    def _fill(self, sequences: Items[Sequence]) -> Masks:
        bitmask = np.full((len(sequences), self._words), -1, dtype=np.int32)
        bound = [(row, sequence) for row, sequence in enumerate(sequences) if sequence.matcher is not None]
        matchers = [(sequence.matcher, row) for row, sequence in bound if sequence.matcher is not None]
        try:
            failed = fill_bitmasks(matchers, bitmask)
        except Exception as error:  # rows without a grammar must not suffer from it
            fault = EngineError(f"the grammars of a step failed: {error!r}")
            fault.__cause__ = error
            failed = dict.fromkeys(range(len(bound)), fault)
        errors = {bound[index][1]: error for index, error in failed.items()}
        return Masks(torch.from_numpy(bitmask), errors)
