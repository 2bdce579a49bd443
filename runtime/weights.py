"""From a Hugging Face folder to a :class:`Model`: everything is checked before anything is allocated."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from tqdm import tqdm  # type: ignore[import-untyped]

from ..errors import ModelError, RequestError
from .checkpoint import Checkpoint, checkpoint_hash
from .memory import available_memory
from .model_builder import build_model
from .model_config import ModelConfig
from .models.deepseek import Model
from .weight_source import SCALE_SUFFIX, FileSource, PlannedSource, scale_shape

__all__ = ["MemoryNeed", "checkpoint_hash", "load_model", "memory_need"]

_DERIVED = ".rotary_emb.inv_freq"  # older Llama files store it; it follows from config.json
_SHOWN_PROBLEMS = 5


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes. `weights` stay, `peak` is the most held at once while loading, `available` None where unknown."""

    weights: int
    peak: int
    available: int | None


@dataclass(frozen=True, slots=True)
class _Plan:
    config: ModelConfig
    checkpoint: Checkpoint
    source: PlannedSource
    need: MemoryNeed


@dataclass(frozen=True, slots=True)
class _Problem:
    message: str
    tensor: str
    file: Path
    shapes: tuple[tuple[int, ...] | None, tuple[int, ...] | None] | None = None


def load_model(folder: Path, *, dtype: torch.dtype, invariant: bool = True, progress: bool = True) -> Model:
    """Load a DeepSeek V2/V3 or Llama checkpoint: config.json and safetensors, one file or sharded.

    Weights in fp32, fp16, bf16 or FP8 e4m3 with 128 x 128 block scales become `dtype`, fp32 or bf16 (router and head:
    fp32 always). `invariant`: products whose rows don't depend on each other's number. `progress`: a bar on stderr.
    A tensor that is missing, extra or misshapen, an unsupported option, or too little memory: `ModelError`, before
    anything is allocated.
    """
    folder = Path(folder)
    plan = _plan(folder, dtype)
    need = plan.need
    if need.available is not None and need.peak > need.available:
        raise ModelError(
            f"loading needs {_size(need.peak)} of memory ({need.peak} bytes), {_size(need.available)} "
            f"({need.available} bytes) are available",
            file=str(folder),
        )
    total = sum(stored.num_bytes for stored in plan.checkpoint.tensors.values())
    description = f"Loading {folder.name} ({_size(need.weights)} in memory)"
    with tqdm(total=total, desc=description, unit="B", unit_scale=True, disable=not progress) as bar:
        source = FileSource(plan.checkpoint, plan.source, invariant=invariant, on_read=bar.update)
        return build_model(plan.config, source)


def memory_need(folder: Path, *, dtype: torch.dtype) -> MemoryNeed:
    """What loading `folder` in `dtype` will take, from its headers alone. Errors as :func:`load_model`."""
    return _plan(Path(folder), dtype).need


def _plan(folder: Path, dtype: torch.dtype) -> _Plan:
    if dtype not in (torch.float32, torch.bfloat16):
        raise RequestError("dtype", dtype, "weights can be loaded as torch.float32 or torch.bfloat16")
    config = ModelConfig.from_folder(folder)
    checkpoint = Checkpoint.open(folder)
    config = _with_stored_mtp_layers(config, checkpoint, folder)
    planned = PlannedSource(checkpoint, dtype)
    model = build_model(config, planned)
    _refuse(list(_problems(config, checkpoint, planned.shapes)))
    weights = model.memory_bytes
    # Beside the weights: the largest tensor as read, converted, and joined with its neighbour in one product.
    largest = max(torch.Size(shape).numel() for shape in planned.shapes.values())
    return _Plan(config, checkpoint, planned, MemoryNeed(weights, weights + 3 * largest * 4, available_memory()))


def _with_stored_mtp_layers(config: ModelConfig, checkpoint: Checkpoint, folder: Path) -> ModelConfig:
    """No MTP layers where the checkpoint has dropped all of them, as transformers does when it saves a model."""
    layers = range(config.num_layers, config.num_layers + config.num_mtp_layers)
    prefixes = tuple(f"model.layers.{layer}." for layer in layers)
    if not prefixes or any(name.startswith(prefixes) for name in checkpoint.tensors):
        return config
    if config.mtp_announced:
        warnings.warn(
            f"{folder}: config.json announces {len(prefixes)} multi-token prediction layers, the checkpoint has none; "
            "the model works without them",
            stacklevel=4,
        )
    return replace(config, num_mtp_layers=0)


def _problems(config: ModelConfig, checkpoint: Checkpoint, shapes: dict[str, tuple[int, ...]]) -> Iterator[_Problem]:
    needed = set(shapes)
    for name, shape in shapes.items():
        stored = checkpoint.tensors.get(name)
        if stored is None:
            yield _Problem("missing tensor", name, checkpoint.origin, (shape, None))
            continue
        if stored.shape != shape:
            yield _Problem("misshapen tensor", name, stored.file, (shape, stored.shape))
        elif stored.dtype == torch.float8_e4m3fn:
            needed.add(name + SCALE_SUFFIX)
            yield from _scale_problems(config, checkpoint, name)
        elif stored.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            yield _Problem(f"tensor of type {stored.dtype_name}, which is not supported", name, stored.file)
    for name, stored in checkpoint.tensors.items():
        if name not in needed and not name.endswith(_DERIVED):
            yield _Problem("extra tensor, of which config.json says nothing", name, stored.file, (None, stored.shape))


def _scale_problems(config: ModelConfig, checkpoint: Checkpoint, name: str) -> Iterator[_Problem]:
    stored = checkpoint.tensors[name]
    if config.fp8_block is None or len(stored.shape) != 2:
        yield _Problem("FP8 tensor that config.json's quantization_config does not cover", name, stored.file)
        return
    expected = scale_shape(stored.shape, config.fp8_block)
    scale = checkpoint.tensors.get(name + SCALE_SUFFIX)
    if scale is None:
        yield _Problem("missing tensor", name + SCALE_SUFFIX, checkpoint.origin, (expected, None))
    elif scale.shape != expected:
        yield _Problem("misshapen tensor", name + SCALE_SUFFIX, scale.file, (expected, scale.shape))
    elif scale.dtype is None or scale.dtype == torch.float8_e4m3fn:
        yield _Problem(f"scale of type {scale.dtype_name}, which is not supported", name + SCALE_SUFFIX, scale.file)


def _refuse(problems: list[_Problem]) -> None:
    if not problems:
        return
    first, *others = problems
    message = first.message
    if others:
        shown = ", ".join(f"{problem.tensor} ({problem.message})" for problem in others[:_SHOWN_PROBLEMS])
        more = f" and {len(others) - _SHOWN_PROBLEMS} others" if len(others) > _SHOWN_PROBLEMS else ""
        message = f"{message}, and {len(others)} more problems: {shown}{more}"
    raise ModelError(message, tensor=first.tensor, file=str(first.file), shapes=first.shapes)


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.1f} MB"
