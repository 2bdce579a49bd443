"""Both spellings of config.json, and what is refused."""

import math
import warnings
from typing import Any

import pytest

from drawloom.errors import ModelError
from drawloom.runtime.model_config import ModelConfig

# As published with DeepSeek-V3 (quantization_config included) and DeepSeek-V2-Lite.
V3: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}, "aux_loss_alpha": 0.001, "bos_token_id": 0,
    "eos_token_id": 1, "ep_size": 1, "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 7168,
    "initializer_range": 0.02, "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 163840,
    "model_type": "deepseek_v3", "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8,
    "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1,
    "pretraining_tp": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "quantization_config": {
        "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128],
    },
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096, "type": "yarn",
    },
    "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "seq_aux": True,
    "tie_word_embeddings": False, "topk_group": 4, "topk_method": "noaux_tc", "torch_dtype": "bfloat16",
    "transformers_version": "4.33.1", "use_cache": True, "v_head_dim": 128, "vocab_size": 129280,
}  # fmt: skip
V2_LITE: dict[str, Any] = {
    "model_type": "deepseek_v2", "vocab_size": 102400, "hidden_size": 2048, "intermediate_size": 10944,
    "moe_intermediate_size": 1408, "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16,
    "n_shared_experts": 2, "n_routed_experts": 64, "routed_scaling_factor": 1.0, "kv_lora_rank": 512,
    "q_lora_rank": None, "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128, "topk_method": "greedy",
    "n_group": 1, "topk_group": 1, "num_experts_per_tok": 6, "moe_layer_freq": 1, "first_k_dense_replace": 1,
    "norm_topk_prob": False, "scoring_func": "softmax", "hidden_act": "silu", "max_position_embeddings": 163840,
    "rms_norm_eps": 1e-6, "rope_theta": 10000, "tie_word_embeddings": False, "attention_bias": False,
    "rope_scaling": {
        "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707,
        "original_max_position_embeddings": 4096, "type": "yarn",
    },
}  # fmt: skip
LLAMA: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "rms_norm_eps": 1e-5, "rope_theta": 100000,
    "max_position_embeddings": 8192, "tie_word_embeddings": True, "hidden_act": "silu", "attention_bias": False,
    "rope_interleaved": False, "rope_scaling": None, "mlp_bias": False,
}  # fmt: skip


def without(values: dict[str, Any], *keys: str, **changes: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in keys} | changes


def test_deepseek_v3_as_published() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config = ModelConfig.from_dict(V3)
    assert (config.num_layers, config.num_mtp_layers, config.fp8_block) == (61, 1, (128, 128))
    attention, gate = config.attention, config.feed_forward.gate
    assert (attention.cache_width, attention.q_lora_rank, attention.num_groups) == (576, 1536, 0)
    assert gate is not None and (gate.num_groups, gate.top_groups, gate.group_score) == (8, 4, "top2")
    assert (gate.k, gate.scoring, gate.has_bias, gate.normalize, gate.scale) == (8, "sigmoid", True, True, 2.5)
    assert [config.feed_forward.is_moe(layer) for layer in (0, 2, 3, 60)] == [False, False, True, True]


@pytest.mark.parametrize(("published", "factor"), [(V3, 1.87385), (V2_LITE, 1.58963)])
def test_the_softmax_scale_has_mscale_squared(published: dict[str, Any], factor: float) -> None:
    """Case D38."""
    config = ModelConfig.from_dict(published)
    assert config.attention.softmax_scale == pytest.approx(192**-0.5 * factor, rel=1e-5)
    assert config.rope_amplitude == 1.0
    plain = ModelConfig.from_dict(without(published, "rope_scaling"))
    assert plain.attention.softmax_scale == 192**-0.5


def test_yarn_frequencies_against_the_formula_in_double_precision() -> None:
    got = ModelConfig.from_dict(V3).inverse_frequencies
    assert len(got) == 32

    def pair(rotations: float) -> float:
        return 64 * math.log(4096 / (rotations * 2 * math.pi)) / (2 * math.log(10000))

    low, high = math.floor(pair(32)), math.ceil(pair(1))
    for index, frequency in enumerate(got):
        ramp = min(max((index - low) / (high - low), 0.0), 1.0)
        plain = 10000 ** (-2 * index / 64)
        assert frequency == pytest.approx(plain / 40 * ramp + plain * (1 - ramp), rel=2e-6)


def test_both_spellings_say_the_same() -> None:
    scaling = without(V3["rope_scaling"], "type")
    newer = without(
        V3, "rope_scaling", "rope_theta", "scoring_func", "topk_method", "moe_layer_freq", "ep_size", "seq_aux",
        "aux_loss_alpha", "torch_dtype",
        rope_parameters=scaling | {"rope_type": "yarn", "rope_theta": 10000.0, "type": "yarn"},
        rope_interleave=True, head_dim=64, qk_head_dim=192, dtype="bfloat16", mlp_bias=None,
    )  # fmt: skip
    assert ModelConfig.from_dict(newer) == ModelConfig.from_dict(V3)
    lite = without(V2_LITE, "rope_scaling", rope_parameters=V2_LITE["rope_scaling"] | {"rope_theta": 10000.0})
    lite = without(lite, "scoring_func", "moe_layer_freq", "n_group", "topk_group", n_group=None, topk_group=None)
    assert ModelConfig.from_dict(lite) == ModelConfig.from_dict(V2_LITE)


def test_what_is_left_out_has_the_architecture_s_default() -> None:
    """Every default of transformers' two classes: a config of nothing but its type and the rope."""
    from transformers import DeepseekV2Config, DeepseekV3Config

    for name, cls in (("deepseek_v2", DeepseekV2Config), ("deepseek_v3", DeepseekV3Config)):
        given: dict[str, Any] = {"num_experts_per_tok": 6} if name == "deepseek_v2" else {}
        bare = ModelConfig.from_dict({"model_type": name, **given})
        full = ModelConfig.from_dict(cls(**given).to_dict())
        assert {**vars(bare), "mtp_announced": True} == {**vars(full), "mtp_announced": True}


def test_kimi_k2_has_the_v3_shape() -> None:
    kimi = without(
        V3, model_type="kimi_k2", num_hidden_layers=61, first_k_dense_replace=1, num_attention_heads=64,
        num_key_value_heads=64, n_routed_experts=384, n_group=1, topk_group=1, routed_scaling_factor=2.827,
        num_nextn_predict_layers=0, vocab_size=163840, rope_theta=50000.0,
    )  # fmt: skip
    config = ModelConfig.from_dict(kimi)
    assert config.feed_forward.gate is not None
    assert (config.feed_forward.num_experts, config.feed_forward.gate.scale, config.num_mtp_layers) == (384, 2.827, 0)


def test_v2_files_may_ask_for_the_sigmoid_gate() -> None:
    values = without(V2_LITE, scoring_func="sigmoid", topk_method="noaux_tc", norm_topk_prob=True)
    gate = ModelConfig.from_dict(values).feed_forward.gate
    assert gate is not None and gate.scoring == "sigmoid" and gate.has_bias and gate.normalize


def test_a_llama_is_latent_attention_without_products_by_zero() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config = ModelConfig.from_dict(LLAMA)
    attention = config.attention
    assert (attention.num_groups, attention.nope_dim, attention.value_dim) == (3, 0, 64)
    assert (attention.latent_dim, attention.rope_dim, attention.cache_width) == (192, 192, 384)
    assert attention.softmax_scale == 0.125 and len(config.inverse_frequencies) == 32


def test_moe_layer_freq_and_missing_parts_are_honoured() -> None:
    config = ModelConfig.from_dict(without(V3, moe_layer_freq=2, n_shared_experts=None))
    moe = config.feed_forward
    assert [moe.is_moe(layer) for layer in range(7)] == [False, False, False, False, True, False, True]
    assert moe.shared_width == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not ModelConfig.from_dict(without(V2_LITE, n_routed_experts=None)).feed_forward.is_moe(5)


ROPE = V3["rope_scaling"]
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "model type": ({"model_type": "qwen2"}, "deepseek_v2, deepseek_v3, kimi_k2, llama"),
    "no model type": (without(V3, "model_type"), "model_type None"),
    "activation": (without(V3, hidden_act="gelu"), "hidden_act='gelu'"),
    "bias": (without(V3, attention_bias=True), "attention_bias=True"),
    "mlp bias": (without(LLAMA, mlp_bias=True), "mlp_bias=True"),
    "gate": (without(V3, scoring_func="softmax"), "scoring_func='softmax'"),
    "method": (without(V3, topk_method="greedy"), "topk_method='greedy'"),
    "v2 method": (without(V2_LITE, topk_method="gready"), "topk_method='gready'"),
    "v2 softmax renormalised": (without(V2_LITE, norm_topk_prob=True), "norm_topk_prob=True"),
    "groups": (without(V3, n_group=7), "n_group=7"),
    "too few experts in the groups": (without(V3, topk_group=1, num_experts_per_tok=40), "topk_group 1"),
    "groups of one": (without(V3, n_group=256, topk_group=16), "n_group=256"),
    "key heads": (without(V3, num_key_value_heads=8), "num_key_value_heads=8"),
    "rope type": (without(V3, rope_scaling=ROPE | {"type": "longrope"}), "rope_scaling.type='longrope'"),
    "dynamic rope": (without(LLAMA, rope_scaling={"type": "dynamic", "factor": 2.0}), "dynamic"),
    "rope key": (without(V3, rope_scaling=ROPE | {"short_factor": [1.0]}), "short_factor"),
    "one mscale": (without(V3, rope_scaling=without(ROPE, "mscale")), "mscale_all_dim"),
    "partial rotation": (without(LLAMA, partial_rotary_factor=0.5), "partial_rotary_factor=0.5"),
    "two rope objects": (without(V3, rope_parameters={"rope_type": "default"}), "rope_parameters"),
    "window": (without(LLAMA, sliding_window=4096), "sliding_window=4096"),
    "sparse attention": (without(V3, index_topk=2048), "index_topk=2048"),
    "quantisation": (without(V3, quantization_config={"quant_method": "gptq"}), "quant_method='gptq'"),
    "quantisation block": (
        without(V3, quantization_config=V3["quantization_config"] | {"weight_block_size": [64, 64]}),
        "weight_block_size=[64, 64]",
    ),
    "static activations": (
        without(V3, quantization_config=V3["quantization_config"] | {"activation_scheme": "static"}),
        "activation_scheme='static'",
    ),
    "a word for a number": (without(V3, hidden_size="wide"), "hidden_size='wide'"),
    "true for a number": (without(V3, num_hidden_layers=True), "num_hidden_layers=True"),
    "zero layers": (without(V3, num_hidden_layers=0), "num_hidden_layers=0"),
    "nan": (without(V3, routed_scaling_factor=float("nan")), "routed_scaling_factor"),
    "odd rotary width": (without(V3, qk_rope_head_dim=63), "qk_rope_head_dim=63"),
    "groups of query heads": (without(LLAMA, num_key_value_heads=4), "num_key_value_heads=4"),
    "slices": (without(LLAMA, drawloom={"expert_slices": 7}), "expert_slices=7"),
    "own unknown key": (without(LLAMA, drawloom={"slices": 8}), "'drawloom.slices'"),
    "slices elsewhere": (without(V3, drawloom={"expert_slices": 8}), "model_type llama"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_options_are_refused_by_name(name: str) -> None:
    values, expected = REFUSED[name]
    with pytest.raises(ModelError) as caught:
        ModelConfig.from_dict(values, file="/there/config.json")
    assert expected in str(caught.value) and caught.value.file == "/there/config.json"


def test_unknown_keys_are_named_in_a_warning() -> None:
    with pytest.warns(UserWarning, match="magic_factor"):
        ModelConfig.from_dict(without(V3, magic_factor=3))
