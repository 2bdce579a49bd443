"""Log-probabilities beside transformers' own models, and the same bits however a sequence is cut."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from drawloom.runtime.models.attention import GroupedAttention, LatentAttention
from drawloom.runtime.models.feed_forward import MixtureOfExperts
from drawloom.runtime.weights import load_model

YARN = {
    "rope_type": "yarn", "factor": 40.0, "beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 64,
}  # fmt: skip
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "v2 greedy, no q_lora": ("v2", {"q_lora_rank": None}),
    "v2 q_lora, scaled": ("v2", {"routed_scaling_factor": 2.5}),
    "v2 group limited": (
        "v2",
        {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2, "routed_scaling_factor": 16.0},
    ),
    "v2 yarn 0.707": ("v2", {"rope_parameters": YARN | {"mscale": 0.707, "mscale_all_dim": 0.707}}),
    "v2 epsilon of the latent norms": ("v2", {"rms_norm_eps": 0.05}),
    "v2 two shared experts, all experts": ("v2", {"n_shared_experts": 2, "first_k_dense_replace": 0}),
    "v3 groups": ("v3", {}),
    "v3 no q_lora, one group": ("v3", {"q_lora_rank": None, "n_group": 1, "topk_group": 1}),
    "v3 unnormalised": ("v3", {"norm_topk_prob": False, "routed_scaling_factor": 1.3}),
    "v3 yarn 1.0": ("v3", {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}}),
    "v3 yarn, two mscales": ("v3", {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 0.5}}),
    "v3 yarn, no mscale, no truncation": ("v3", {"rope_parameters": YARN | {"truncate": False}}),
    "v3 linear": ("v3", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e4}}),
    "v3 rotary halves": ("v3", {"rope_interleave": False}),
    "v3 no rotation-free part": ("v3", {"qk_nope_head_dim": 0, "v_head_dim": 16}),
    "v3 all dense": ("v3", {"first_k_dense_replace": 3}),
    "v3 tied": ("v3", {"tie_word_embeddings": True}),
    "llama": ("llama", {"num_key_value_heads": 2}),
    "llama tied": ("llama", {"num_key_value_heads": 2, "tie_word_embeddings": True, "rope_theta": 1e5}),
    "llama one key head": ("llama", {"num_key_value_heads": 1}),
    "llama wide heads": ("llama", {"head_dim": 32, "num_attention_heads": 8, "num_key_value_heads": 4}),
    "llama linear": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}),
    "llama yarn": ("llama", {"rope_parameters": YARN}),
    "llama 3 rope": (
        "llama",
        {
            "head_dim": 32,
            "rope_parameters": {
                "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 128, "rope_theta": 5e5,
            },
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_logprobs_equal_transformers_at_every_position(
    name: str,
    checkpoint: Callable[..., tuple[Any, Path]],
    token_ids: list[int],
    run_model: Callable[..., Tensor],
    reference_logprobs: Callable[..., Tensor],
    record_property: Callable[[str, object], None],
) -> None:
    kind, settings = CASES[name]
    theirs, folder = checkpoint(kind, **settings)
    ours = load_model(folder, dtype=torch.float32, progress=False)
    hidden = run_model(ours, token_ids)
    got, want = ours.logits(hidden).log_softmax(-1), reference_logprobs(theirs, token_ids)
    assert got.shape == want.shape and want.std() > 0.5, "the model must say something"
    difference = (got - want).abs().max().item()
    record_property("difference", difference)
    assert difference <= 1e-4
    cuts = [1] * 20 + [7, 100, 1, 2, 64, 106]
    assert torch.equal(run_model(ours, token_ids, cuts), hidden), "chunks change no bit"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["v2", "v3", "llama"])
def test_one_token_at_a_time_gives_the_bits_of_one_prefill(
    kind: str,
    dtype: torch.dtype,
    checkpoint: Callable[..., tuple[Any, Path]],
    token_ids: list[int],
    run_model: Callable[..., Tensor],
) -> None:
    _, folder = checkpoint(kind)
    model = load_model(folder, dtype=dtype, progress=False)
    whole = run_model(model, token_ids)
    assert whole.dtype == dtype and whole.isfinite().all()
    for cuts in ([1] * 40 + [200] + [1] * 60, [255, 1, 1, 43]):  # keys are summed in blocks of 256
        assert torch.equal(run_model(model, token_ids, cuts), whole)
    assert torch.equal(run_model(model, token_ids[:70]), whole[:70])
    logits = model.logits(whole)
    assert logits.dtype == torch.float32
    for rows in (1, 2, 3, 17):
        assert torch.equal(model.logits(whole[:rows]), logits[:rows])


@pytest.mark.parametrize("kind", ["v2", "v3", "llama"])
def test_bf16_stays_near_fp32(
    kind: str, checkpoint: Callable[..., tuple[Any, Path]], token_ids: list[int], logprobs: Callable[..., Tensor]
) -> None:
    _, folder = checkpoint(kind, std=0.05)
    exact, rounded = (
        logprobs(load_model(folder, dtype=dtype, progress=False), token_ids)
        for dtype in (torch.float32, torch.bfloat16)
    )
    assert 0 < (exact - rounded).abs().mean() < 0.01


@pytest.mark.parametrize(("kind", "mscale"), [("v2", 0.707), ("v3", 1.0)])
def test_yarn_holds_far_beyond_the_original_length(
    kind: str,
    mscale: float,
    checkpoint: Callable[..., tuple[Any, Path]],
    token_ids: list[int],
    logprobs: Callable[..., Tensor],
    reference_logprobs: Callable[..., Tensor],
) -> None:
    """Case D38: positions 0, 1, 100 and 5000. Without mscale², position 0 alone would look right."""
    rope = YARN | {"mscale": mscale, "mscale_all_dim": mscale, "original_max_position_embeddings": 128}
    theirs, folder = checkpoint(kind, rope_parameters=rope)
    positions = [0, 1, 2, 99, 100, 101, 999, 1000, 2500, 4999, 5000, 5001, 8191]
    ids = token_ids[: len(positions)]
    got = logprobs(load_model(folder, dtype=torch.float32, progress=False), ids, positions)
    want = reference_logprobs(theirs, ids, positions)
    assert (got - want).abs().max() <= 1e-4
    for layer in theirs.model.layers:
        layer.self_attn.scaling = (16 + 8) ** -0.5
    unscaled = reference_logprobs(theirs, ids, positions)
    assert (unscaled[0] - want[0]).abs().max() < 1e-5 and (unscaled[4:] - want[4:]).abs().max() > 1e-2


@pytest.mark.parametrize("slices", [2, 8])
def test_the_feed_forward_cut_into_active_experts_is_the_whole(
    slices: int,
    checkpoint: Callable[..., tuple[Any, Path]],
    token_ids: list[int],
    run_model: Callable[..., Tensor],
    edit_config: Callable[..., None],
) -> None:
    _, folder = checkpoint("llama", num_key_value_heads=2)
    plain = load_model(folder, dtype=torch.float32, progress=False)
    edit_config(folder, drawloom={"expert_slices": slices})
    cut = load_model(folder, dtype=torch.float32, progress=False)
    layer = cut.layers[0]
    assert isinstance(layer.feed_forward, MixtureOfExperts) and len(layer.feed_forward.down) == slices
    assert isinstance(layer.attention, GroupedAttention) and layer.attention.num_groups == 2
    want, got = run_model(plain, token_ids), run_model(cut, token_ids)
    assert not torch.equal(got, want) and (got - want).abs().max() <= 2e-5 * want.abs().max()
    assert torch.equal(run_model(cut, token_ids, [1] * 40 + [260]), got)
    assert cut.memory_bytes == plain.memory_bytes


def test_the_cache_holds_the_latent_and_the_rotary_key_alone(checkpoint: Callable[..., tuple[Any, Path]]) -> None:
    _, folder = checkpoint("v3")
    model = load_model(folder, dtype=torch.bfloat16, progress=False)
    assert isinstance(model.layers[0].attention, LatentAttention)
    assert (model.num_layers, model.cache_width, model.cache_bytes_per_token) == (3, 32 + 8, 3 * 40 * 2)
    _, folder = checkpoint("llama", num_key_value_heads=2)
    model = load_model(folder, dtype=torch.float32, progress=False)
    assert (model.cache_width, model.cache_bytes_per_token, model.heads_per_group) == (64, 3 * 64 * 4, 2)
