"""cuBLASLt products that never split K, called through ctypes on the library torch has loaded.

Only algorithms 66 and 41 are taken, with every reduction scheme forbidden: they keep one fp32 accumulator and walk K in
order, so their bits are those of the Triton kernel in `matmul`. Source: NVIDIA, cuBLASLt API reference (CUDA 13).
"""

import ctypes
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

__all__ = ["CublasLt", "LtAlgorithm", "cublaslt"]

_ALLOWED_IDS = (66, 41)
_COMPUTE_32F, _R_32F, _R_16BF = 68, 0, 14
_DESC_TRANSA = 3
_PREF_MAX_WORKSPACE, _PREF_REDUCTION_MASK = 1, 3
_ALGO_ID, _ALGO_SPLITK = 0, 2
_WORKSPACE_BYTES = 32 << 20


class _Algo(ctypes.Structure):
    _fields_ = [("data", ctypes.c_uint64 * 8)]


class _Heuristic(ctypes.Structure):
    _fields_ = [
        ("algo", _Algo),
        ("workspace_size", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    ]


@dataclass(frozen=True)
class LtAlgorithm:
    """One algorithm as its 64 opaque bytes in hex: storable, valid for the same library version."""

    data: str

    def struct(self) -> _Algo:
        return _Algo.from_buffer_copy(bytes.fromhex(self.data))


class CublasLt:
    """A handle, and the layouts of the shapes seen so far."""

    def __init__(self, path: str) -> None:
        self._lib = ctypes.CDLL(path)
        self._lib.cublasLtGetVersion.restype = ctypes.c_size_t
        self.version = int(self._lib.cublasLtGetVersion())
        self._handle = ctypes.c_void_p()
        self._check(self._lib.cublasLtCreate(ctypes.byref(self._handle)), "create")
        self._desc = ctypes.c_void_p()
        self._check(self._lib.cublasLtMatmulDescCreate(ctypes.byref(self._desc), _COMPUTE_32F, _R_32F), "desc")
        transpose = ctypes.c_int(1)
        self._check(
            self._lib.cublasLtMatmulDescSetAttribute(self._desc, _DESC_TRANSA, ctypes.byref(transpose), 4), "transpose"
        )
        self._layouts: dict[tuple[int, int, torch.dtype], ctypes.c_void_p] = {}
        self._structs: dict[LtAlgorithm, _Algo] = {}
        self._workspaces: dict[torch.device, Tensor] = {}

    def algorithms(self, rows: int, out_features: int, in_features: int, dtype: torch.dtype) -> list[LtAlgorithm]:
        """The library's choices for x [rows, in] times weight [out, in] transposed into `dtype`, best first."""
        pref = ctypes.c_void_p()
        self._check(self._lib.cublasLtMatmulPreferenceCreate(ctypes.byref(pref)), "preference")
        for attribute, value in (
            (_PREF_MAX_WORKSPACE, ctypes.c_size_t(_WORKSPACE_BYTES)),
            (_PREF_REDUCTION_MASK, ctypes.c_uint32(0)),
        ):
            size = ctypes.sizeof(value)
            status = self._lib.cublasLtMatmulPreferenceSetAttribute(
                pref, attribute, ctypes.byref(value), ctypes.c_size_t(size)
            )
            self._check(status, "preference")
        found = (_Heuristic * 24)()
        count = ctypes.c_int(0)
        a, b, d = self._matrices(rows, out_features, in_features, dtype)
        status = self._lib.cublasLtMatmulAlgoGetHeuristic(
            self._handle, self._desc, a, b, d, d, pref, len(found), found, ctypes.byref(count)
        )
        self._lib.cublasLtMatmulPreferenceDestroy(pref)
        if status != 0:
            return []
        usable = [h.algo for h in found[: count.value] if h.state == 0]
        return [
            LtAlgorithm(bytes(algo).hex())
            for algo in usable
            if self._attribute(algo, _ALGO_ID) in _ALLOWED_IDS and self._attribute(algo, _ALGO_SPLITK) in (0, 1)
        ]

    def matmul(self, x: Tensor, weight: Tensor, out: Tensor, residual: Tensor | None, algorithm: LtAlgorithm) -> None:
        """`out` = x [rows, in] weight [out, in] transposed (+ residual, of out's dtype), on the current stream."""
        rows, in_features = x.shape
        a, b, d = self._matrices(rows, weight.shape[0], in_features, out.dtype)
        struct = self._structs.get(algorithm)
        if struct is None:
            struct = self._structs[algorithm] = algorithm.struct()
        workspace = self._workspaces.get(x.device)
        if workspace is None:
            workspace = self._workspaces[x.device] = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=x.device)
        one, beta = ctypes.c_float(1.0), ctypes.c_float(0.0 if residual is None else 1.0)
        added = out if residual is None else residual
        status = self._lib.cublasLtMatmul(
            self._handle, self._desc, ctypes.byref(one), _pointer(weight), a, _pointer(x), b, ctypes.byref(beta),
            _pointer(added), d, _pointer(out), d, ctypes.byref(struct), _pointer(workspace),
            ctypes.c_size_t(_WORKSPACE_BYTES), ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
        )  # fmt: skip
        self._check(status, "matmul")

    def _matrices(
        self, rows: int, out_features: int, in_features: int, dtype: torch.dtype
    ) -> tuple[ctypes.c_void_p, ...]:
        # The library counts by columns: a row-major [r, c] is its c x r.
        return (
            self._layout(in_features, out_features, torch.bfloat16),
            self._layout(in_features, rows, torch.bfloat16),
            self._layout(out_features, rows, dtype),
        )

    def _layout(self, leading: int, columns: int, dtype: torch.dtype) -> ctypes.c_void_p:
        key = (leading, columns, dtype)
        if key not in self._layouts:
            layout = ctypes.c_void_p()
            kind = _R_16BF if dtype == torch.bfloat16 else _R_32F
            status = self._lib.cublasLtMatrixLayoutCreate(
                ctypes.byref(layout), kind, ctypes.c_uint64(leading), ctypes.c_uint64(columns), ctypes.c_int64(leading)
            )
            self._check(status, "layout")
            self._layouts[key] = layout
        return self._layouts[key]

    def _attribute(self, algo: _Algo, attribute: int) -> int:
        value, written = ctypes.c_int(-1), ctypes.c_size_t()
        status = self._lib.cublasLtMatmulAlgoConfigGetAttribute(
            ctypes.byref(algo), attribute, ctypes.byref(value), ctypes.c_size_t(4), ctypes.byref(written)
        )
        self._check(status, "algorithm attribute")
        return value.value

    @staticmethod
    def _check(status: int, what: str) -> None:
        if status != 0:
            raise RuntimeError(f"cuBLASLt {what}: status {status}")


@cache
def cublaslt() -> CublasLt | None:
    """The library that torch has loaded, or None where there is none."""
    torch.cuda.current_blas_handle()
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return None
    found = re.search(r"\S*libcublasLt\.so\S*", maps)
    return None if found is None else CublasLt(found.group())


def _pointer(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())
