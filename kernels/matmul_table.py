"""Which member of the bitwise class multiplies fastest, by (rows, out, in): tuned on the device, kept as JSON."""

import json
import os
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import torch
import triton

from .cublaslt import LtAlgorithm, cublaslt

__all__ = [
    "BUCKETS",
    "REFERENCE",
    "Member",
    "TritonMember",
    "bucket_rows",
    "default_member",
    "load_table",
    "lookup",
    "save_table",
    "table_key",
    "triton_members",
]

BUCKETS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


@dataclass(frozen=True)
class TritonMember:
    """One configuration of the kernel in `matmul`."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    swap: bool = True
    tma: bool = True


Member = TritonMember | LtAlgorithm

_T = TritonMember
_FEW_ROWS = (
    _T(16, 64, 256, 4, 4), _T(16, 64, 256, 4, 5), _T(16, 64, 128, 4, 8), _T(16, 128, 128, 4, 5),
    _T(8, 64, 256, 4, 5), _T(8, 32, 512, 2, 4, tma=False), _T(16, 32, 256, 4, 4, tma=False),
    _T(16, 16, 512, 1, 4, tma=False), _T(16, 32, 512, 2, 4, tma=False),
)  # fmt: skip
_MEMBERS: dict[int, tuple[TritonMember, ...]] = {
    8: _FEW_ROWS,
    16: _FEW_ROWS,
    32: (
        _T(32, 64, 256, 4, 4), _T(32, 64, 128, 4, 6), _T(32, 64, 128, 4, 8), _T(32, 128, 128, 4, 5),
        _T(32, 32, 256, 4, 4, tma=False), _T(32, 32, 512, 4, 3, tma=False), _T(64, 32, 256, 4, 4, swap=False),
        _T(64, 16, 256, 4, 5, swap=False), _T(32, 32, 256, 2, 4, tma=False), _T(64, 32, 128, 4, 8, swap=False),
    ),
    64: (
        _T(64, 64, 128, 4, 4), _T(64, 64, 128, 4, 6), _T(64, 128, 128, 4, 4), _T(64, 32, 256, 4, 4, swap=False),
        _T(64, 64, 256, 4, 3), _T(64, 128, 64, 4, 6),
    ),
    128: (
        _T(64, 128, 128, 4, 4), _T(64, 64, 128, 4, 6), _T(128, 64, 128, 4, 4, swap=False), _T(128, 128, 128, 8, 3),
        _T(128, 128, 64, 4, 4), _T(128, 64, 64, 4, 6),
    ),
    512: (
        _T(128, 128, 64, 4, 4, swap=False), _T(64, 128, 128, 4, 4), _T(128, 256, 64, 8, 4, swap=False),
        _T(128, 128, 64, 8, 5), _T(128, 64, 128, 4, 4, swap=False),
    ),
    4096: (_T(128, 256, 64, 8, 4, swap=False), _T(128, 128, 64, 4, 4, swap=False), _T(256, 128, 64, 8, 4, swap=False)),
}  # fmt: skip
REFERENCE = TritonMember(16, 64, 64, 4, 3, swap=False, tma=False)


def bucket_rows(rows: int) -> int:
    """The number of rows that stands for `rows` in the table."""
    return next((bucket for bucket in BUCKETS if rows <= bucket), BUCKETS[-1])


def default_member(rows: int, out_features: int, in_features: int) -> TritonMember:
    """A fixed choice for shapes that were not tuned."""
    member = triton_members(rows)[0]
    # A tensor descriptor needs rows of a multiple of 16 bytes.
    return member if in_features % 8 == 0 else REFERENCE


def triton_members(rows: int) -> tuple[TritonMember, ...]:
    """Configurations worth timing for this number of rows."""
    return _MEMBERS[next((limit for limit in _MEMBERS if rows <= limit), 4096)]


def lookup(rows: int, out_features: int, in_features: int, dtype: torch.dtype) -> Member | None:
    """The tuned member for a shape, or None."""
    return load_table().get(table_key(bucket_rows(rows), out_features, in_features, dtype))


def table_key(rows: int, out_features: int, in_features: int, dtype: torch.dtype) -> str:
    return f"{rows}x{out_features}x{in_features} {'fp32' if dtype == torch.float32 else 'bf16'}"


@cache
def _path() -> Path:
    library = cublaslt()
    version = library.version if library else 0
    name = f"{torch.cuda.get_device_name()}-torch{torch.__version__}-triton{triton.__version__}-cublaslt{version}"
    root = os.environ.get("DRAWLOOM_CACHE")
    folder = Path(root) if root else Path.home() / ".cache" / "drawloom"
    return folder / "matmul" / ("".join(c if c.isalnum() or c in ".-" else "_" for c in name) + ".json")


@cache
def load_table() -> dict[str, Member]:
    """The stored choices for this device and these libraries: one dictionary a process, changed by tuning alone."""
    if not torch.cuda.is_available() or not _path().is_file():
        return {}
    stored = json.loads(_path().read_text())
    return {key: LtAlgorithm(**value) if "data" in value else TritonMember(**value) for key, value in stored.items()}


def save_table(table: dict[str, Member]) -> None:
    _path().parent.mkdir(parents=True, exist_ok=True)
    scratch = _path().with_suffix(f".{os.getpid()}")
    scratch.write_text(json.dumps({key: asdict(member) for key, member in sorted(table.items())}, indent=1))
    scratch.replace(_path())
