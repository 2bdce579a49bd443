"""What a checkpoint's config.json says of the model's arithmetic: the DeepSeek family, and Llama in its terms."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..errors import ModelError

__all__ = ["AttentionConfig", "FeedForwardConfig", "GateConfig", "ModelConfig", "read_json"]


@dataclass(frozen=True)
class AttentionConfig:
    """Latent attention. A cache row is [latent | rotary key].

    `num_groups` > 0 marks a grouped-query model in latent form: the latent is all groups' values, the rotary key all
    groups' keys, there is no latent norm, no part of a query without rotation, and the value up-projection picks a
    head's group, so it is no product at all. 0: a latent model, whose heads share the whole cache row.
    """

    num_heads: int
    q_lora_rank: int | None  # None: queries come straight from the hidden state
    latent_dim: int
    nope_dim: int  # width of a head's query and key without rotation
    rope_dim: int  # width of the rotary key in the cache, all groups together
    value_dim: int
    softmax_scale: float
    num_groups: int = 0
    rope_interleaved: bool = True  # rotary pairs side by side in the checkpoint; else half a head apart

    @property
    def head_rope_dim(self) -> int:
        """Width of one head's rotary part."""
        return self.rope_dim // max(self.num_groups, 1)

    @property
    def cache_width(self) -> int:
        return self.latent_dim + self.rope_dim


@dataclass(frozen=True)
class GateConfig:
    """How experts are chosen and weighed: the arguments of :func:`drawloom.kernels.reference.moe.moe_gate`."""

    k: int
    scoring: Literal["softmax", "sigmoid"]
    has_bias: bool
    num_groups: int
    top_groups: int
    group_score: Literal["max", "top2"]
    normalize: bool
    scale: float


@dataclass(frozen=True)
class FeedForwardConfig:
    """Layers before `first_moe_layer`, and those that `moe_layer_freq` doesn't divide, are dense.

    `gate` None with `num_experts` > 0: every expert is active with weight 1 (the slices of a plain feed-forward).
    """

    dense_width: int
    num_experts: int = 0
    expert_width: int = 0
    shared_width: int = 0  # of all shared experts together
    first_moe_layer: int = 0
    moe_layer_freq: int = 1
    gate: GateConfig | None = None

    def is_moe(self, layer: int) -> bool:
        return self.num_experts > 0 and layer >= self.first_moe_layer and layer % self.moe_layer_freq == 0


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and switches of one model. `inverse_frequencies` are radians a position, one a rotary pair of a head."""

    model_type: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_mtp_layers: int
    mtp_announced: bool  # config.json itself names the number of MTP layers
    max_positions: int
    norm_eps: float
    tie_embeddings: bool
    attention: AttentionConfig
    feed_forward: FeedForwardConfig
    inverse_frequencies: tuple[float, ...]
    rope_amplitude: float  # cos and sin are multiplied by it
    fp8_block: tuple[int, int] | None = None

    @classmethod
    def from_folder(cls, folder: Path) -> "ModelConfig":
        """Read `folder`/config.json. Unknown architecture, unsupported option, missing file: `ModelError`."""
        return cls.from_dict(read_json(folder / "config.json"), file=str(folder / "config.json"))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, file: str = "config.json") -> "ModelConfig":
        """Read the content of a config.json, as DeepSeek's files or transformers 5 spell it.

        Every key that changes the arithmetic is honoured or refused with a `ModelError`; keys that are not known at
        all are named in a `UserWarning`.
        """
        from .config_readers import READERS

        model_type = values.get("model_type")
        if model_type not in READERS:
            supported = ", ".join(sorted(READERS))
            raise ModelError(f"model_type {model_type!r} is not supported; supported: {supported}", file=file)
        return READERS[model_type](values, file)


def read_json(path: Path) -> dict[str, Any]:
    """A file that holds one JSON object; else `ModelError`."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError("the file is missing from the model's folder", file=str(path)) from None
    except (OSError, ValueError) as error:
        raise ModelError(f"can't be read: {error}", file=str(path)) from error
    if not isinstance(values, dict):
        raise ModelError("must hold a JSON object", file=str(path))
    return values
