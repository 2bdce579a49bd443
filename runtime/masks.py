"""Fills the token bitmasks of one step on a thread of its own, while the forward pass runs."""

from collections.abc import Sequence as Items
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..errors import DrawloomError, EngineError
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
        errors: dict[Sequence, DrawloomError] = {}
        for row, sequence in enumerate(sequences):
            if sequence.matcher is None:
                continue
            try:
                sequence.matcher.fill_bitmask(bitmask, row)
            except DrawloomError as error:
                errors[sequence] = error
            except Exception as error:  # a fault of one grammar must not reach the other rows
                errors[sequence] = EngineError(f"the grammar failed: {error!r}")
        return Masks(torch.from_numpy(bitmask), errors)
