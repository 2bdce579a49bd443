"""Checkpoint names -> the parts of a :class:`Model`."""

import torch
from torch import Tensor

from ..kernels.dispatch import PackedWeight
from .model_config import ModelConfig
from .models.attention import Attention, GroupedAttention, LatentAttention
from .models.deepseek import DecoderLayer, Model, MTPLayer
from .models.feed_forward import FeedForward, Gate, MixtureOfExperts, PlainFeedForward
from .models.rotary import RotaryTable
from .weight_source import WeightSource

__all__ = ["build_model"]


def build_model(config: ModelConfig, source: WeightSource) -> Model:
    """Take every tensor of the model from `source`, by its Hugging Face name."""
    hidden = config.hidden_size
    embedding = source.tensor("model.embed_tokens.weight", config.vocab_size, hidden, dtype=torch.float32)
    if config.tie_embeddings:
        head = embedding
        source.own("lm_head.weight", embedding, may_differ=False)
    else:
        head = source.tensor("lm_head.weight", config.vocab_size, hidden, dtype=torch.float32)
    layers = range(config.num_layers)
    mtp_layers = range(config.num_layers, config.num_layers + config.num_mtp_layers)
    return Model(
        config=config,
        dtype=source.dtype,
        embedding=embedding.to(source.dtype),
        layers=tuple(_decoder_layer(config, source, layer) for layer in layers),
        output_norm=source.tensor("model.norm.weight", hidden),
        head=source.pack(head),
        mtp_layers=tuple(_mtp_layer(config, source, layer, embedding, head) for layer in mtp_layers),
        rotary=RotaryTable(config.inverse_frequencies, config.rope_amplitude, config.max_positions),
    )


def _decoder_layer(config: ModelConfig, source: WeightSource, layer: int) -> DecoderLayer:
    prefix = f"model.layers.{layer}."
    attention: Attention
    if config.attention.num_groups:
        attention = _grouped_attention(config, source, prefix + "self_attn.")
    else:
        attention = _latent_attention(config, source, prefix + "self_attn.")
    return DecoderLayer(
        attention_norm=source.tensor(prefix + "input_layernorm.weight", config.hidden_size),
        attention=attention,
        feed_forward_norm=source.tensor(prefix + "post_attention_layernorm.weight", config.hidden_size),
        feed_forward=_feed_forward(config, source, prefix + "mlp.", layer),
        norm_eps=config.norm_eps,
    )


def _latent_attention(config: ModelConfig, source: WeightSource, prefix: str) -> LatentAttention:
    shape, hidden = config.attention, config.hidden_size
    heads, nope, value, latent, rank = (
        shape.num_heads,
        shape.nope_dim,
        shape.value_dim,
        shape.latent_dim,
        shape.q_lora_rank,
    )
    cached = source.tensor(prefix + "kv_a_proj_with_mqa.weight", latent + shape.rope_dim, hidden)
    first: tuple[Tensor, ...]
    if rank is None:
        first = _query_rows(config, source, prefix + "q_proj.weight", hidden)
    else:
        first = (source.tensor(prefix + "q_a_proj.weight", rank, hidden),)
    up = source.tensor(prefix + "kv_b_proj.weight", heads * (nope + value), latent).view(heads, nope + value, latent)
    return LatentAttention(
        down=source.pack(*first, _rotary_rows(config, cached[latent:]), cached[:latent]),
        query_norm=None if rank is None else source.tensor(prefix + "q_a_layernorm.weight", rank),
        query_up=None if rank is None else source.pack(*_query_rows(config, source, prefix + "q_b_proj.weight", rank)),
        latent_norm=source.tensor(prefix + "kv_a_layernorm.weight", latent),
        absorb_key=tuple(source.pack(head[:nope].t()) for head in up) if nope else (),
        absorb_value=tuple(source.pack(head[nope:]) for head in up),
        output=source.pack(source.tensor(prefix + "o_proj.weight", hidden, heads * value)),
        num_heads=heads,
        nope_dim=nope,
        rope_dim=shape.rope_dim,
        latent_dim=latent,
        scale=shape.softmax_scale,
    )


def _query_rows(config: ModelConfig, source: WeightSource, name: str, width: int) -> tuple[Tensor, Tensor]:
    """From rows head by head to two blocks: all heads without rotation, and all heads' rotary parts."""
    shape = config.attention
    heads, nope, rope = shape.num_heads, shape.nope_dim, shape.rope_dim
    by_head = source.tensor(name, heads * (nope + rope), width).view(heads, nope + rope, width)
    turned = by_head[:, nope:].reshape(heads * rope, width)
    return by_head[:, :nope].reshape(heads * nope, width), _rotary_rows(config, turned)


def _rotary_rows(config: ModelConfig, rows: Tensor) -> Tensor:
    return rows if config.attention.rope_interleaved else _pairs_together(rows, config.attention.head_rope_dim)


def _grouped_attention(config: ModelConfig, source: WeightSource, prefix: str) -> GroupedAttention:
    shape, hidden = config.attention, config.hidden_size
    heads, groups, head_dim = shape.num_heads, shape.num_groups, shape.head_rope_dim
    queries = source.tensor(prefix + "q_proj.weight", heads * head_dim, hidden)
    keys = source.tensor(prefix + "k_proj.weight", groups * head_dim, hidden)
    values = source.tensor(prefix + "v_proj.weight", groups * head_dim, hidden)
    turned = [_rotary_rows(config, rows) for rows in (queries, keys)]
    return GroupedAttention(
        project=source.pack(*turned, values),
        output=source.pack(source.tensor(prefix + "o_proj.weight", hidden, heads * head_dim)),
        num_heads=heads,
        num_groups=groups,
        head_dim=head_dim,
        scale=shape.softmax_scale,
    )


def _feed_forward(config: ModelConfig, source: WeightSource, prefix: str, layer: int) -> FeedForward:
    shape = config.feed_forward
    if not shape.is_moe(layer):
        return _plain_feed_forward(config, source, prefix, shape.dense_width)
    if shape.gate is None:
        return _sliced_feed_forward(config, source, prefix)
    names = [f"{prefix}experts.{expert}." for expert in range(shape.num_experts)]
    bias = None
    if shape.gate.has_bias:
        bias = source.tensor(prefix + "gate.e_score_correction_bias", shape.num_experts, dtype=torch.float32)
    gate = source.tensor(prefix + "gate.weight", shape.num_experts, config.hidden_size, dtype=torch.float32)
    experts = [_plain_feed_forward(config, source, name, shape.expert_width) for name in names]
    shared = None
    if shape.shared_width:
        shared = _plain_feed_forward(config, source, prefix + "shared_experts.", shape.shared_width)
    return MixtureOfExperts(
        gate=Gate(source.pack(gate), bias, shape.gate),
        gate_up=tuple(expert.gate_up for expert in experts),
        down=tuple(expert.down for expert in experts),
        shared=shared,
    )


def _plain_feed_forward(config: ModelConfig, source: WeightSource, prefix: str, width: int) -> PlainFeedForward:
    gate, up, down = _feed_forward_weights(config, source, prefix, width)
    return PlainFeedForward(gate_up=source.pack(gate, up), down=source.pack(down))


def _sliced_feed_forward(config: ModelConfig, source: WeightSource, prefix: str) -> MixtureOfExperts:
    """A plain feed-forward cut along its hidden units; the sum over the slices is the whole."""
    shape = config.feed_forward
    gate, up, down = _feed_forward_weights(config, source, prefix, shape.dense_width)
    slices = zip(gate.split(shape.expert_width), up.split(shape.expert_width), strict=True)
    return MixtureOfExperts(
        gate=None,
        gate_up=tuple(source.pack(*pair) for pair in slices),
        down=tuple(source.pack(part) for part in down.split(shape.expert_width, 1)),
        shared=None,
    )


def _feed_forward_weights(
    config: ModelConfig, source: WeightSource, prefix: str, width: int
) -> tuple[Tensor, Tensor, Tensor]:
    hidden = config.hidden_size
    return (
        source.tensor(prefix + "gate_proj.weight", width, hidden),
        source.tensor(prefix + "up_proj.weight", width, hidden),
        source.tensor(prefix + "down_proj.weight", hidden, width),
    )


def _mtp_layer(config: ModelConfig, source: WeightSource, layer: int, embedding: Tensor, head: Tensor) -> MTPLayer:
    prefix, hidden = f"model.layers.{layer}.", config.hidden_size
    own_embedding = source.own(prefix + "embed_tokens.weight", embedding, may_differ=True)
    own_head: PackedWeight | None = None
    if (head_weight := source.own(prefix + "shared_head.head.weight", head, may_differ=True)) is not None:
        own_head = source.pack(head_weight)
    return MTPLayer(
        embedding_norm=source.tensor(prefix + "enorm.weight", hidden),
        hidden_norm=source.tensor(prefix + "hnorm.weight", hidden),
        projection=source.pack(source.tensor(prefix + "eh_proj.weight", hidden, 2 * hidden)),
        layer=_decoder_layer(config, source, layer),
        output_norm=source.tensor(prefix + "shared_head.norm.weight", hidden),
        embedding=None if own_embedding is None else own_embedding.to(source.dtype),
        head=own_head,
    )


def _pairs_together(rows: Tensor, head_dim: int) -> Tensor:
    """Reorder each head's rows so that rotary pairs lie side by side instead of half a head apart."""
    width = rows.shape[1]
    return rows.view(-1, 2, head_dim // 2, width).transpose(1, 2).reshape(-1, width)
