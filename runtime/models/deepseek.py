"""The DeepSeek family's model, and everything that loads as a case of it: ids and cache in, hidden states out."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from ...kernels.dispatch import PackedWeight, matmul, rms_norm
from ..batch import ForwardInput
from ..model_config import ModelConfig
from .attention import Attention, StepContext
from .feed_forward import FeedForward
from .rotary import RotaryTable

__all__ = ["DecoderLayer", "MTPLayer", "Model"]


@dataclass(frozen=True)
class DecoderLayer:
    attention_norm: Tensor
    attention: Attention
    feed_forward_norm: Tensor
    feed_forward: FeedForward
    norm_eps: float

    def forward(self, x: Tensor, cache: Tensor, step: StepContext) -> Tensor:
        x = self.attention.forward(rms_norm(x, self.attention_norm, self.norm_eps), x, cache, step)
        return self.feed_forward.forward(rms_norm(x, self.feed_forward_norm, self.norm_eps), x)


@dataclass(frozen=True)
class MTPLayer:
    """A module that predicts one token further ahead (DeepSeek-V3, arXiv 2412.19437, section 2.2): `projection` of
    [normalised embedding of the next token | normalised hidden state], then `layer`, `output_norm` and the head.

    `embedding` and `head` are None where the module shares the model's.
    """

    embedding_norm: Tensor
    hidden_norm: Tensor
    projection: PackedWeight  # 2 · hidden -> hidden
    layer: DecoderLayer
    output_norm: Tensor
    embedding: Tensor | None
    head: PackedWeight | None


@dataclass(frozen=True, eq=False)
class Model:
    """Weights of one model on the CPU. Made by :func:`drawloom.runtime.weights.load_model`."""

    config: ModelConfig
    dtype: torch.dtype
    embedding: Tensor  # [vocabulary, hidden]
    layers: tuple[DecoderLayer, ...]
    output_norm: Tensor
    head: PackedWeight  # fp32 whatever the dtype
    mtp_layers: tuple[MTPLayer, ...]
    rotary: RotaryTable

    def forward(self, inputs: ForwardInput, cache: Tensor) -> Tensor:
        """Hidden states [rows, hidden] in the model's dtype, the last norm applied. Writes the rows' cache entries.

        `cache` [num_layers, pages, page_size, cache_width] in the model's dtype, finite everywhere. A row's bits depend
        on its token and position and on the cache rows it may see, on nothing else. Call it under
        `torch.inference_mode`, as it is never differentiated.
        """
        step = StepContext(self.rotary.rows(inputs.positions), inputs.slots, inputs.attention)
        x = self.embedding.index_select(0, inputs.token_ids)
        for layer, layer_cache in zip(self.layers, cache.unbind(0), strict=True):
            x = layer.forward(x, layer_cache, step)
        return rms_norm(x, self.output_norm, self.config.norm_eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """fp32 [rows, vocabulary] of `hidden` [rows, hidden]; the product is done in fp32 for every dtype."""
        return matmul(hidden.float(), self.head)

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def max_positions(self) -> int:
        return self.config.max_positions

    @property
    def cache_width(self) -> int:
        """Numbers a token and layer in the cache: latent and rotary key."""
        return self.config.attention.cache_width

    @property
    def heads_per_group(self) -> int:
        """Query heads that share a key, as :func:`drawloom.kernels.dispatch.plan_attention` needs it."""
        return self.config.attention.num_heads // max(self.config.attention.num_groups, 1)

    @property
    def cache_bytes_per_token(self) -> int:
        return self.num_layers * self.cache_width * self.dtype.itemsize

    @property
    def memory_bytes(self) -> int:
        """Bytes of all weights as laid out in memory, MTP layers included."""
        return sum(_weight_bytes(self))


def _weight_bytes(part: Any) -> Iterator[int]:
    if isinstance(part, (Tensor, PackedWeight)):
        yield part.nbytes
    elif isinstance(part, tuple):
        for item in part:
            yield from _weight_bytes(item)
    elif is_dataclass(part):
        for field in fields(part):
            yield from _weight_bytes(getattr(part, field.name))
