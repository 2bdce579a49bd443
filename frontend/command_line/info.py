"""`drawloom info`: what a model is and what it takes, from the headers of its files."""

import json
import re
from argparse import Namespace
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from ...errors import RequestError
from ...runtime.checkpoint import Checkpoint
from ...runtime.memory import available_memory
from ...runtime.model_config import AttentionConfig, FeedForwardConfig, ModelConfig
from ...runtime.tokenizer import Tokenizer
from ...runtime.weight_source import SCALE_SUFFIX
from ...runtime.weights import memory_need
from .options import model_folder

__all__ = ["describe", "run"]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_EXPERT = re.compile(r"model\.layers\.\d+\.mlp\.experts\.\d+\.")


def run(args: Namespace) -> int:
    folder = model_folder(args.model)
    if not folder.is_dir():
        raise RequestError("model", str(folder), "is no folder")
    facts = describe(folder)
    if args.json:
        print(json.dumps(facts, indent=1, ensure_ascii=False))
    else:
        width = max(map(len, facts))
        for name, value in facts.items():
            print(f"{name:{width}}  {_shown(name, value)}")
    return 0


def describe(folder: Path) -> dict[str, Any]:
    """Names of facts to JSON values, sizes in bytes. Errors as those of loading the model."""
    config, checkpoint = ModelConfig.from_folder(folder), Checkpoint.open(folder)
    tokenizer = Tokenizer.from_folder(folder, vocab_size=config.vocab_size)
    total, active = _parameters(config, checkpoint)
    facts: dict[str, Any] = {
        "model": str(folder),
        "architecture": config.model_type,
        "layers": config.num_layers,
        "multi-token prediction layers": config.num_mtp_layers,
        "hidden size": config.hidden_size,
        "attention": _attention(config.attention),
        "feed-forward": _feed_forward(config.feed_forward),
        "parameters": total,
        "parameters a token": active,
        "dtype on disk": _stored_dtypes(checkpoint),
        "context length": config.max_positions,
        "vocabulary": config.vocab_size,
        "end of text": [name for name, index in tokenizer.special_ids.items() if index in tokenizer.eos_ids],
        "chat template": tokenizer.chat_template is not None,
        "memory available": available_memory(),
    }
    for name, dtype in _DTYPES.items():
        need = memory_need(folder, dtype=dtype)
        token_bytes = config.num_layers * config.attention.cache_width * dtype.itemsize
        facts[f"{name}: memory of the weights"] = need.weights
        facts[f"{name}: most memory while loading"] = need.peak
        facts[f"{name}: memory of the cache a token"] = token_bytes
        facts[f"{name}: memory of the cache, full context"] = token_bytes * config.max_positions
    return facts


def _attention(shape: AttentionConfig) -> str:
    if shape.num_groups:
        return f"grouped-query: {shape.num_heads} heads of {shape.head_rope_dim} in {shape.num_groups} groups"
    rank = f", queries through rank {shape.q_lora_rank}" if shape.q_lora_rank is not None else ""
    return (
        f"latent: {shape.num_heads} heads of {shape.nope_dim} + {shape.rope_dim} rotary, values of {shape.value_dim}, "
        f"latent of {shape.latent_dim}{rank}"
    )


def _feed_forward(shape: FeedForwardConfig) -> str:
    if not shape.num_experts:
        return f"dense, {shape.dense_width} wide"
    if shape.gate is None:
        return f"dense, {shape.dense_width} wide, in {shape.num_experts} slices"
    shared = f", shared ones of {shape.shared_width} together" if shape.shared_width else ""
    dense = (
        f"; the first {shape.first_moe_layer} layers dense, {shape.dense_width} wide" if shape.first_moe_layer else ""
    )
    return f"{shape.gate.k} of {shape.num_experts} experts, {shape.expert_width} wide{shared}{dense}"


def _parameters(config: ModelConfig, checkpoint: Checkpoint) -> tuple[int, int]:
    """All of them, and those that one token meets: of the experts only the chosen ones."""
    sizes = {
        name: torch.Size(stored.shape).numel()
        for name, stored in checkpoint.tensors.items()
        if not name.endswith((SCALE_SUFFIX, ".rotary_emb.inv_freq"))
    }
    total, gate = sum(sizes.values()), config.feed_forward.gate
    if gate is None:
        return total, total
    experts = sum(size for name, size in sizes.items() if _EXPERT.match(name))
    return total, total - experts + experts * gate.k // config.feed_forward.num_experts


def _stored_dtypes(checkpoint: Checkpoint) -> str:
    """The kinds of numbers, most bytes first."""
    sizes: Counter[str] = Counter()
    for stored in checkpoint.tensors.values():
        sizes[stored.dtype_name] += stored.num_bytes
    return ", ".join(name for name, _ in sizes.most_common())


def _shown(name: str, value: Any) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " ".join(value) or "none"
    if "memory" in name:
        return (
            f"{value / 1e9:.2f} GB" if value >= 1e8 else f"{value / 1e6:.1f} MB" if value >= 1e5 else f"{value:,} bytes"
        )
    return f"{value:,}" if isinstance(value, int) else str(value)
