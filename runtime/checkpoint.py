"""A Hugging Face folder of safetensors files: what is in it, and its tensors."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import ModelError
from .model_config import read_json

__all__ = ["Checkpoint", "StoredTensor", "checkpoint_hash"]

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
}
_HASH_BLOCKS, _HASH_BLOCK_BYTES = 64, 4096


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies. `dtype` is None where the file's type is none that a weight can have."""

    file: Path
    start: int
    num_bytes: int
    shape: tuple[int, ...]
    dtype: torch.dtype | None
    dtype_name: str


@dataclass(frozen=True)
class Checkpoint:
    """All tensors of a folder by name, known from the files' headers alone; `origin` is the file that lists them."""

    tensors: Mapping[str, StoredTensor]
    origin: Path

    @classmethod
    def open(cls, folder: Path) -> "Checkpoint":
        """Read the headers. A missing, truncated or malformed file, or a name in two files: `ModelError`."""
        index = folder / _INDEX
        expected: dict[str, str] = {}
        if index.exists():
            expected = _weight_map(index)
        elif not (folder / _SINGLE).exists():
            raise ModelError(f"the folder holds neither {_SINGLE} nor {_INDEX}", file=str(folder))
        tensors: dict[str, StoredTensor] = {}
        for file in _files(folder, expected):
            for name, stored in _read_header(file).items():
                if name in tensors:
                    raise ModelError(f"the tensor is also in {tensors[name].file.name}", tensor=name, file=str(file))
                tensors[name] = stored
        for name, file_name in expected.items():
            if name not in tensors or tensors[name].file.name != file_name:
                raise ModelError(f"{_INDEX} names a file without the tensor", tensor=name, file=str(folder / file_name))
        return cls(tensors, index if expected else folder / _SINGLE)

    def read(self, name: str) -> Tensor:
        """The tensor as stored, in memory of its own. (A mapped file would count each page twice while loading.)"""
        stored = self.tensors[name]
        assert stored.dtype is not None
        raw = np.fromfile(stored.file, dtype=np.uint8, count=stored.num_bytes, offset=stored.start)
        if raw.nbytes != stored.num_bytes:
            raise ModelError("the file ended while it was read", tensor=name, file=str(stored.file))
        return torch.from_numpy(raw).view(stored.dtype).view(stored.shape)


def checkpoint_hash(folder: Path) -> str:
    """Names a checkpoint's content: 64 hexadecimal digits, in milliseconds however large it is.

    SHA-256 over config.json and, for each safetensors file in name order, its name, size, header, and 64 blocks of
    4 KiB spread evenly over its data. Any change of shape, type, layout or configuration changes it, and so does a
    change of weights that reaches a block, as training or quantising does; a few edited numbers may not.
    """
    folder = Path(folder)
    digest = sha256((folder / "config.json").read_bytes())
    index = folder / _INDEX
    for file in _files(folder, _weight_map(index) if index.exists() else {}):
        size = file.stat().st_size
        header, _ = _header_bytes(file)
        digest.update(f"\0{file.name}\0{size}\0".encode())
        digest.update(header)
        first, room = 8 + len(header), max(size - 8 - len(header) - _HASH_BLOCK_BYTES, 0)
        with file.open("rb") as stream:
            for block in range(_HASH_BLOCKS):
                stream.seek(first + room * block // (_HASH_BLOCKS - 1))
                digest.update(stream.read(_HASH_BLOCK_BYTES))
    return digest.hexdigest()


def _files(folder: Path, weight_map: Mapping[str, str]) -> list[Path]:
    return sorted(folder / name for name in set(weight_map.values())) or [folder / _SINGLE]


def _weight_map(index: Path) -> dict[str, str]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError("must hold a weight_map", file=str(index))
    for name, file_name in weight_map.items():
        if not isinstance(file_name, str) or Path(file_name).name != file_name:
            raise ModelError(f"{file_name!r} is no name of a file in this folder", tensor=name, file=str(index))
    return weight_map


def _header_bytes(file: Path) -> tuple[bytes, int]:
    """The JSON header of a safetensors file, and the file's size."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if length > size - 8:
                raise ModelError(
                    f"the file is truncated: {size} bytes, its header alone needs {length}", file=str(file)
                )
            return stream.read(length), size
    except FileNotFoundError:
        raise ModelError("the file is missing from the model's folder", file=str(file)) from None
    except OSError as error:
        raise ModelError(f"can't be read: {error}", file=str(file)) from error


def _read_header(file: Path) -> dict[str, StoredTensor]:
    header, size = _header_bytes(file)
    data = 8 + len(header)
    try:
        entries = json.loads(header)
        entries.pop("__metadata__", None)
        tensors = {name: _stored(file, data, entry) for name, entry in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"the file's header is malformed: {error}", file=str(file)) from error
    end = max((stored.start + stored.num_bytes for stored in tensors.values()), default=data)
    if end != size:
        raise ModelError(f"the file is truncated or damaged: {size} bytes, its header describes {end}", file=str(file))
    return tensors


def _stored(file: Path, data: int, entry: Mapping[str, Any]) -> StoredTensor:
    start, end = entry["data_offsets"]
    shape, dtype = tuple(entry["shape"]), _DTYPES.get(entry["dtype"])
    if start < 0 or end < start or dtype is not None and end - start != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{end - start} bytes for shape {list(shape)} of {entry['dtype']}")
    return StoredTensor(file, data + start, end - start, shape, dtype, entry["dtype"])
