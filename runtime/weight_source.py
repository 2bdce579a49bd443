"""Where a model's builder takes its weights from: first a plan that only records, then the files."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import torch
from torch import Tensor

from ..errors import ModelError
from ..kernels.dispatch import PackedWeight, pack_weight
from .checkpoint import Checkpoint

__all__ = ["SCALE_SUFFIX", "FileSource", "PlannedSource", "WeightSource", "scale_shape"]

SCALE_SUFFIX = "_scale_inv"
_READ_AHEAD = 4  # tensors


class WeightSource(Protocol):
    """One builder is run twice: to learn which tensors the model needs and how large it is, then to load it."""

    @property
    def dtype(self) -> torch.dtype:
        """The model's dtype."""
        ...

    def tensor(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """A weight in `dtype`, by default the model's."""
        ...

    def own(self, name: str, shared: Tensor, *, may_differ: bool) -> Tensor | None:
        """A tensor that a checkpoint may leave out or repeat: None where it is absent or equals `shared`."""
        ...

    def pack(self, *rows: Tensor) -> PackedWeight:
        """A weight [out, in], given in one or several blocks of rows, laid out for products."""
        ...


class PlannedSource:
    """Records names and shapes; its tensors have no memory."""

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._checkpoint = checkpoint

    def tensor(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        self.shapes[name] = shape
        return torch.empty(shape, dtype=dtype or self.dtype, device="meta")

    def own(self, name: str, shared: Tensor, *, may_differ: bool) -> Tensor | None:
        if name not in self._checkpoint.tensors:
            return None
        planned = self.tensor(name, *shared.shape, dtype=shared.dtype)
        return planned if may_differ else None

    def pack(self, *rows: Tensor) -> PackedWeight:
        shape = sum(block.shape[0] for block in rows), rows[0].shape[1]
        return PackedWeight(torch.empty(shape, dtype=rows[0].dtype, device="meta"), "plain", shape)


class FileSource:
    """Reads, dequantises and converts the tensors that `plan` recorded, in its order. `on_read` is told the bytes."""

    def __init__(
        self, checkpoint: Checkpoint, plan: PlannedSource, *, invariant: bool, on_read: Callable[[int], object]
    ) -> None:
        self.dtype = plan.dtype
        self._checkpoint = checkpoint
        self._invariant = invariant
        self._on_read = on_read
        self._staging = torch.empty(0)
        self._stored = _read_ahead(checkpoint, _stored_names(checkpoint, plan.shapes))

    def tensor(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        stored = self._read(name)
        assert stored.shape == shape, (name, stored.shape, shape)
        if stored.dtype == torch.float8_e4m3fn:
            stored = _dequantized(stored, self._read(name + SCALE_SUFFIX).float())
        return stored.to(dtype or self.dtype)

    def own(self, name: str, shared: Tensor, *, may_differ: bool) -> Tensor | None:
        if name not in self._checkpoint.tensors:
            return None
        found = self.tensor(name, *shared.shape, dtype=shared.dtype)
        if torch.equal(found, shared):
            return None
        if not may_differ:
            file = str(self._checkpoint.tensors[name].file)
            raise ModelError("config.json ties the tensor to the embedding, but it differs", tensor=name, file=file)
        return found

    def pack(self, *rows: Tensor) -> PackedWeight:
        if len(rows) == 1 or not self._invariant:
            return pack_weight(torch.cat(rows) if len(rows) > 1 else rows[0], invariant=self._invariant)
        # An invariant layout is always a copy, so the rows may meet in memory that the next weight uses again: taking
        # fresh memory for each would cost more time than the copy itself.
        shape = sum(block.shape[0] for block in rows), rows[0].shape[1]
        staging = self._staging_of(math.prod(shape), rows[0].dtype).view(shape)
        return pack_weight(torch.cat(rows, out=staging), invariant=True)

    def _staging_of(self, size: int, dtype: torch.dtype) -> Tensor:
        if self._staging.dtype != dtype or self._staging.numel() < size:
            self._staging = torch.empty(size, dtype=dtype)
        return self._staging[:size]

    def _read(self, name: str) -> Tensor:
        found, stored = next(self._stored)
        assert found == name, "the builder asks in the order of its plan"
        self._on_read(stored.nbytes)
        return stored


def _stored_names(checkpoint: Checkpoint, planned: Iterable[str]) -> Iterator[str]:
    for name in planned:
        yield name
        if checkpoint.tensors[name].dtype == torch.float8_e4m3fn:
            yield name + SCALE_SUFFIX


def _read_ahead(checkpoint: Checkpoint, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
    """The disk and the packing of weights at work at the same time."""
    pending: deque[tuple[str, Future[Tensor]]] = deque()
    with ThreadPoolExecutor(1, "drawloom-read") as reader:
        for name in names:
            pending.append((name, reader.submit(checkpoint.read, name)))
            if len(pending) > _READ_AHEAD:
                first, future = pending.popleft()
                yield first, future.result()
        for name, future in pending:
            yield name, future.result()


def scale_shape(shape: tuple[int, ...], block: tuple[int, int]) -> tuple[int, ...]:
    """Shape of the scales of an FP8 weight [out, in]: one a block, partial blocks included."""
    return tuple(-(-size // width) for size, width in zip(shape, block, strict=True))


def _dequantized(weight: Tensor, scale: Tensor) -> Tensor:
    """fp32 [out, in] of an e4m3 weight with one fp32 scale for each block of 128 x 128."""
    values = weight.float()
    factors = scale.repeat_interleave(128, 1)[:, : values.shape[1]]
    for rows, factor in zip(values.split(128), factors, strict=True):
        rows.mul_(factor)
    return values
