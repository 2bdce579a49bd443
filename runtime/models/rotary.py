"""cos and sin of every position."""

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["RotaryTable"]

_FIRST_LENGTH = 1024


class RotaryTable:
    """Grows by doubling up to `max_positions`. An entry depends on its position alone, not on the table's length."""

    def __init__(self, inverse_frequencies: Sequence[float], amplitude: float, max_positions: int) -> None:
        self.max_positions = max_positions
        self._inverse = torch.tensor(inverse_frequencies, dtype=torch.float32)
        self._amplitude = amplitude
        self._table = torch.empty(0, len(inverse_frequencies), 2)

    def rows(self, positions: Tensor) -> Tensor:
        """(cos, sin) of each pair, fp32 [rows, pairs, 2], for int64 `positions` [rows] below `max_positions`."""
        needed = int(positions.max()) + 1 if positions.numel() else 0
        if needed > self._table.shape[0]:
            assert needed <= self.max_positions, (needed, self.max_positions)
            length = min(max(needed, 2 * self._table.shape[0], _FIRST_LENGTH), self.max_positions)
            self._table = self._compute(length)
        return self._table.index_select(0, positions)

    def _compute(self, length: int) -> Tensor:
        # The published code rounds an angle to fp32, and that is what the weights have learnt; at position 5000 the
        # exact angle already moves log-probabilities in the fourth decimal. From there on nothing is rounded twice.
        angles = (torch.arange(length, dtype=torch.float32).unsqueeze(1) * self._inverse).double()
        return (torch.stack((angles.cos(), angles.sin()), -1) * self._amplitude).float()
