"""Everything that happens once, when an engine starts."""

from dataclasses import dataclass
from pathlib import Path

import torch

from ..errors import RequestError
from .checkpoint import checkpoint_hash
from .default_model import default_model_folder
from .engine_config import EngineConfig
from .fingerprint import fingerprint
from .kv_cache import KVCache
from .masks import MaskFiller
from .memory import available_memory
from .model_runner import ModelRunner
from .models.deepseek import Model
from .radix_cache import Namespace
from .scheduler import Scheduler
from .step_loop import StepLoop
from .tokenizer import Tokenizer
from .weights import load_model

__all__ = ["Loaded", "load_parts", "start_loop"]

_DEFAULT_KV_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model with its tokenizer. `model_hash` names the weights in fingerprints and cache namespaces."""

    model: Model
    tokenizer: Tokenizer
    model_hash: str


def load_parts(config: EngineConfig) -> Loaded:
    """Load what `config` names. Sets PyTorch's number of threads, which belongs to the whole process."""
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    folder = default_model_folder(progress=config.progress) if config.model is None else Path(config.model)
    model = load_model(folder, dtype=config.torch_dtype, invariant=config.invariant, progress=config.progress)
    tokenizer = Tokenizer.from_folder(folder, vocab_size=model.vocab_size)
    return Loaded(model, tokenizer, checkpoint_hash(folder))


def start_loop(loaded: Loaded, config: EngineConfig) -> StepLoop:
    """Allocate the latent cache and start the thread that steps."""
    model, num_threads = loaded.model, config.num_threads or torch.get_num_threads()
    num_pages = _num_pages(model, config)
    scheduler = Scheduler(
        KVCache(num_pages, config.page_size, Namespace(loaded.model_hash)),
        max_batch_tokens=config.max_batch_tokens,
        max_sequences=config.max_sequences,
        fingerprint=fingerprint(
            model_hash=loaded.model_hash,
            dtype=model.dtype,
            num_threads=num_threads,
            invariant=config.invariant,
        ),
    )
    runner = ModelRunner(model, num_pages=num_pages, page_size=config.page_size)
    return StepLoop(scheduler, runner, MaskFiller(model.vocab_size), num_threads)


def _num_pages(model: Model, config: EngineConfig) -> int:
    page_bytes, free = config.page_size * model.cache_bytes_per_token, available_memory()
    if config.kv_bytes is not None:
        if config.kv_bytes < page_bytes:
            raise RequestError("kv_bytes", config.kv_bytes, f"holds no page: one takes {page_bytes} bytes")
        if free is not None and config.kv_bytes > free:
            raise RequestError("kv_bytes", config.kv_bytes, f"is more than the {free} bytes of free memory")
        return config.kv_bytes // page_bytes
    kv_bytes = _DEFAULT_KV_BYTES if free is None else min(_DEFAULT_KV_BYTES, free // 4)
    return max(kv_bytes // page_bytes, 1)
