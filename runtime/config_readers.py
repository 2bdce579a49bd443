"""From the keys of config.json to a :class:`ModelConfig`, one reader a family of models."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

from .config_fields import ConfigFields
from .model_config import AttentionConfig, FeedForwardConfig, GateConfig, ModelConfig
from .rope_scaling import read_rope

__all__ = ["READERS"]

# Keys that leave the arithmetic of inference alone: training, generation, bookkeeping, and what follows from others.
_HARMLESS = """
    model_type architectures auto_map torch_dtype dtype transformers_version _name_or_path name_or_path
    initializer_range use_cache use_return_dict return_dict output_attentions output_hidden_states output_router_logits
    bos_token_id eos_token_id pad_token_id unk_token_id pretraining_tp ep_size aux_loss_alpha seq_aux attention_dropout
    hidden_dropout router_aux_loss_coef tokenizer_class chunk_size_feed_forward id2label label2id problem_type
    finetuning_task is_encoder_decoder num_labels head_dim qk_head_dim _attn_implementation torchscript
    is_llama_config bad_words_ids
""".split()

# Keys whose presence asks for another model.
_REFUSED = """
    sliding_window layer_types index_n_heads index_head_dim index_topk attn_logit_softcapping final_logit_softcapping
    logit_scale logits_scaling embedding_multiplier residual_multiplier attention_multiplier scale_emb scale_depth
    original_max_position_embeddings num_local_experts mtp_layer_types hash_layers compress_ratios
""".split()

# What describes experts, and so has nothing to say where there are none.
_EXPERT_KEYS = """
    moe_intermediate_size n_shared_experts first_k_dense_replace moe_layer_freq scoring_func topk_method n_group
    topk_group num_experts_per_tok norm_topk_prob routed_scaling_factor
""".split()


def _deepseek(values: Mapping[str, Any], file: str, *, version: Literal[2, 3]) -> ModelConfig:
    v3 = version == 3
    fields = ConfigFields(values, file)
    _refuse_foreign(fields)
    heads = fields.integer("num_attention_heads", 128 if v3 else 32)
    fields.require("num_key_value_heads", (heads,), "must equal num_attention_heads: all heads share one latent")
    max_positions = fields.integer("max_position_embeddings", 4096 if v3 else 2048)
    nope, rope = fields.integer("qk_nope_head_dim", 128, minimum=0), _even(fields, "qk_rope_head_dim", 64)
    frequencies = read_rope(fields, rope, max_positions)
    attention = AttentionConfig(
        num_heads=heads,
        q_lora_rank=None if fields.is_null("q_lora_rank") else fields.integer("q_lora_rank", 1536),
        latent_dim=fields.integer("kv_lora_rank", 512),
        nope_dim=nope,
        rope_dim=rope,
        value_dim=fields.integer("v_head_dim", 128),
        softmax_scale=(nope + rope) ** -0.5 * frequencies.softmax_factor,
        rope_interleaved=fields.flag("rope_interleave", True),
    )
    count_key = "num_nextn_predict_layers" if fields.has("num_nextn_predict_layers") else "num_mtp_layers"
    config = ModelConfig(
        model_type=values["model_type"],
        vocab_size=fields.integer("vocab_size", 129280 if v3 else 102400),
        hidden_size=fields.integer("hidden_size", 7168 if v3 else 4096),
        num_layers=fields.integer("num_hidden_layers", 61 if v3 else 32),
        num_mtp_layers=fields.integer(count_key, 1 if v3 else 0, minimum=0),
        mtp_announced=fields.has(count_key),
        max_positions=max_positions,
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        tie_embeddings=fields.flag("tie_word_embeddings", False),
        attention=attention,
        feed_forward=_feed_forward(fields, v3),
        inverse_frequencies=frequencies.inverse,
        rope_amplitude=frequencies.amplitude,
        fp8_block=_fp8_block(fields),
    )
    fields.require("drawloom", (), "is only known for model_type llama")
    _warn_of_unread(fields, file)
    return config


def _feed_forward(fields: ConfigFields, v3: bool) -> FeedForwardConfig:
    dense_width = fields.integer("intermediate_size", 18432 if v3 else 11008)
    if fields.is_null("n_routed_experts"):
        fields.ignore(_EXPERT_KEYS)
        return FeedForwardConfig(dense_width)
    experts = fields.integer("n_routed_experts", 256 if v3 else 64)
    expert_width = fields.integer("moe_intermediate_size", 2048 if v3 else 1407)
    shared = 0 if fields.is_null("n_shared_experts") else fields.integer("n_shared_experts", 1 if v3 else 2, minimum=0)
    return FeedForwardConfig(
        dense_width,
        num_experts=experts,
        expert_width=expert_width,
        shared_width=shared * expert_width,
        first_moe_layer=fields.integer("first_k_dense_replace", 3 if v3 else 0, minimum=0),
        moe_layer_freq=fields.integer("moe_layer_freq", 1),
        gate=_gate(fields, experts, v3),
    )


def _gate(fields: ConfigFields, experts: int, v3: bool) -> GateConfig:
    """DeepSeek-V3's gate is the sigmoid one. V2 files may ask for either; transformers 5 writes only softmax ones."""
    scoring: Literal["softmax", "sigmoid"] = "sigmoid"
    if v3:
        fields.choice("scoring_func", "sigmoid", ("sigmoid",))
    elif fields.choice("scoring_func", "softmax", ("softmax", "sigmoid")) == "softmax":
        scoring = "softmax"
    methods = ("noaux_tc",) if scoring == "sigmoid" else ("greedy", "group_limited_greedy")
    method = fields.choice("topk_method", methods[0], methods)
    k = fields.integer("num_experts_per_tok", 8 if v3 else None)
    normalize = fields.flag("norm_topk_prob", v3)
    if normalize and scoring == "softmax":
        raise fields.error(
            "norm_topk_prob", "is not supported with softmax scoring: published implementations disagree"
        )
    groups = fields.integer("n_group", 8 if v3 and not fields.is_null("n_group") else 1)
    top_groups = fields.integer("topk_group", min(4, groups) if v3 else groups)
    if method == "greedy":
        groups = top_groups = 1
    group_score: Literal["max", "top2"] = "max" if scoring == "softmax" else "top2"
    if experts % groups or top_groups > groups or k > experts // groups * top_groups:
        raise fields.error("n_group", f"and topk_group {top_groups} don't leave {k} of {experts} experts to choose")
    if groups > 1 and group_score == "top2" and experts // groups < 2:
        raise fields.error("n_group", "leaves groups of one expert, and a group's score is that of its best two")
    return GateConfig(
        k=k,
        scoring=scoring,
        has_bias=scoring == "sigmoid",
        num_groups=groups,
        top_groups=top_groups,
        group_score=group_score,
        normalize=normalize,
        scale=fields.number("routed_scaling_factor", 2.5 if v3 else 1.0),
    )


def _llama(values: Mapping[str, Any], file: str) -> ModelConfig:
    """A grouped-query model as a special case of latent attention: latent = values, rotary key = keys, nope width 0."""
    fields = ConfigFields(values, file)
    _refuse_foreign(fields)
    hidden = fields.integer("hidden_size", 4096)
    heads = fields.integer("num_attention_heads", 32)
    groups = fields.integer("num_key_value_heads", heads)
    fields.require("rope_interleaved", (False,), "is not supported: a Llama's rotary pairs lie half a head apart")
    if heads % groups:
        raise fields.error("num_key_value_heads", f"must divide num_attention_heads {heads}")
    if not fields.has("head_dim") and hidden % heads:
        raise fields.error("hidden_size", f"must be a multiple of num_attention_heads {heads} where head_dim is absent")
    head_dim = _even(fields, "head_dim", hidden // heads)
    max_positions = fields.integer("max_position_embeddings", 2048)
    frequencies = read_rope(fields, head_dim, max_positions)
    width = fields.integer("intermediate_size", 11008)
    config = ModelConfig(
        model_type="llama",
        vocab_size=fields.integer("vocab_size", 32000),
        hidden_size=hidden,
        num_layers=fields.integer("num_hidden_layers", 32),
        num_mtp_layers=0,
        mtp_announced=False,
        max_positions=max_positions,
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        tie_embeddings=fields.flag("tie_word_embeddings", False),
        attention=AttentionConfig(
            num_heads=heads,
            q_lora_rank=None,
            latent_dim=groups * head_dim,
            nope_dim=0,
            rope_dim=groups * head_dim,
            value_dim=head_dim,
            softmax_scale=head_dim**-0.5,
            num_groups=groups,
            rope_interleaved=False,
        ),
        feed_forward=_sliced(fields, width),
        inverse_frequencies=frequencies.inverse,
        rope_amplitude=frequencies.amplitude,
        fp8_block=_fp8_block(fields),
    )
    _warn_of_unread(fields, file)
    return config


def _sliced(fields: ConfigFields, width: int) -> FeedForwardConfig:
    """`"drawloom": {"expert_slices": n}` cuts the feed-forward into n experts that are always active."""
    dense = FeedForwardConfig(dense_width=width)
    own = fields.child("drawloom")
    if own is None:
        return dense
    slices = own.integer("expert_slices", 1)
    if width % slices:
        raise own.error("expert_slices", f"must divide intermediate_size {width}")
    if unread := own.unread():
        raise fields.error("drawloom", f"has unknown keys: {unread}")
    return dense if slices == 1 else replace(dense, num_experts=slices, expert_width=width // slices)


def _fp8_block(fields: ConfigFields) -> tuple[int, int] | None:
    quantization = fields.child("quantization_config")
    if quantization is None:
        return None
    quantization.choice("quant_method", None, ("fp8",))
    quantization.choice("fmt", "e4m3", ("e4m3",))
    # Weights alone are dequantised; activations stay in the model's dtype, which loses nothing against quantising them.
    quantization.choice("activation_scheme", "dynamic", ("dynamic",))
    quantization.choice("scale_fmt", "ue8m0", ("ue8m0", "float32"))
    if not quantization.has("weight_block_size"):
        raise quantization.error("weight_block_size", "is not supported; supported: [128, 128]")
    quantization.require("weight_block_size", ([128, 128],), "is not supported; supported: [128, 128]")
    quantization.ignore(("modules_to_not_convert", "dequantize"))
    if unread := quantization.unread():
        raise fields.error("quantization_config", f"has unsupported keys: {unread}")
    return 128, 128


def _even(fields: ConfigFields, key: str, default: int) -> int:
    value = fields.integer(key, default)
    if value % 2:
        raise fields.error(key, "must be even: the rotary embedding turns pairs")
    return value


def _refuse_foreign(fields: ConfigFields) -> None:
    fields.ignore(_HARMLESS)
    for key in _REFUSED:
        fields.require(key, (), "is not supported by this architecture")
    fields.require("hidden_act", ("silu",), "is not supported; supported: silu")
    for key in ("attention_bias", "mlp_bias"):
        fields.require(key, (False,), "is not supported: projections have no bias")


def _warn_of_unread(fields: ConfigFields, file: str) -> None:
    if unread := fields.unread():
        warnings.warn(f"{file}: unknown keys are not used: {', '.join(unread)}", stacklevel=4)


READERS: dict[str, Callable[[Mapping[str, Any], str], ModelConfig]] = {
    "deepseek_v2": lambda values, file: _deepseek(values, file, version=2),
    "deepseek_v3": lambda values, file: _deepseek(values, file, version=3),
    "kimi_k2": lambda values, file: _deepseek(values, file, version=3),
    "llama": _llama,
}
