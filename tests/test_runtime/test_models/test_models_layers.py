"""Layers that transformers can't write by itself: sparse MoE layers, no shared experts, MTP modules, a toy gate."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from drawloom.errors import ModelError
from drawloom.kernels.dispatch import pack_weight
from drawloom.runtime.model_config import GateConfig
from drawloom.runtime.models.attention import LatentAttention
from drawloom.runtime.models.feed_forward import Gate, MixtureOfExperts, PlainFeedForward
from drawloom.runtime.models.rotary import RotaryTable
from drawloom.runtime.weights import load_model, memory_need

SINGLE = "model.safetensors"


def gate_config(**changes: Any) -> GateConfig:
    plain: dict[str, Any] = {
        "k": 2, "scoring": "softmax", "has_bias": False, "num_groups": 1, "top_groups": 1, "group_score": "max",
        "normalize": False, "scale": 2.5,
    }  # fmt: skip
    return GateConfig(**plain | changes)


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize("shared", [False, True])
def test_the_routed_scaling_factor_is_applied_exactly_once(scoring: Any, shared: bool) -> None:
    """Case D37: four experts that multiply by 1 to 4, top 2, factor 2.5."""
    torch.manual_seed(0)
    width = 8
    x = torch.randn(6, width)
    x[:, -1] = 1.0
    always_open = torch.zeros(width, width)
    always_open[:, -1] = 32.0  # silu(32) is 32 exactly, since its sigmoid rounds to 1
    identity = torch.eye(width)

    def multiplies_by(factor: float) -> PlainFeedForward:
        return PlainFeedForward(
            gate_up=pack_weight(torch.cat((always_open, identity * factor / 32))), down=pack_weight(identity)
        )

    experts = [multiplies_by(factor) for factor in (1.0, 2.0, 3.0, 4.0)]
    router = torch.randn(4, width)
    config = gate_config(scoring=scoring, has_bias=scoring == "sigmoid", normalize=scoring == "sigmoid")
    layer = MixtureOfExperts(
        gate=Gate(pack_weight(router), torch.zeros(4) if config.has_bias else None, config),
        gate_up=tuple(expert.gate_up for expert in experts),
        down=tuple(expert.down for expert in experts),
        shared=multiplies_by(10.0) if shared else None,
    )
    logits = x @ router.T
    scores = logits.softmax(-1) if scoring == "softmax" else logits.sigmoid()
    best = scores.topk(2)
    weights = best.values / best.values.sum(-1, keepdim=True) if config.normalize else best.values
    routed = (weights * (best.indices + 1)).sum(-1, keepdim=True) * 2.5 * x
    residual = torch.randn(6, width)
    got = layer.forward(x, residual) - residual - (10 * x if shared else 0)
    assert torch.allclose(got, routed, atol=1e-4)
    assert torch.allclose((got / routed)[:, :-1].median(), torch.tensor(1.0), atol=1e-4)


def test_the_router_works_in_fp32_in_a_bf16_model(checkpoint: Callable[..., tuple[Any, Path]]) -> None:
    model = load_model(checkpoint("v3")[1], dtype=torch.bfloat16, progress=False)
    layer = model.layers[1].feed_forward
    assert isinstance(layer, MixtureOfExperts) and layer.gate is not None
    assert layer.gate.weight.dtype == model.head.dtype == torch.float32 and layer.down[0].dtype == torch.bfloat16
    with pytest.raises(AssertionError):
        Gate(pack_weight(torch.randn(4, 8).bfloat16()), None, gate_config())
    with pytest.raises(AssertionError):
        Gate(pack_weight(torch.randn(4, 8)), None, gate_config(has_bias=True))


def test_sparse_moe_layers_and_no_shared_experts(
    make_hugging_face: Callable[..., Any],
    tmp_path: Path,
    token_ids: list[int],
    logprobs: Callable[..., Tensor],
    reference_logprobs: Callable[..., Tensor],
    edit_config: Callable[..., None],
) -> None:
    theirs = make_hugging_face("v3", num_hidden_layers=5)
    for index in (1, 3):  # moe_layer_freq 2 leaves layers 2 and 4, which transformers doesn't know
        dense = type(theirs.model.layers[0].mlp)(theirs.config)
        for weight in dense.parameters():
            torch.nn.init.normal_(weight, 0, 0.15)
        theirs.model.layers[index].mlp = dense
    for index in (2, 4):
        theirs.model.layers[index].mlp.shared_experts = torch.nn.Module()
        theirs.model.layers[index].mlp.shared_experts.forward = torch.zeros_like
    theirs.save_pretrained(tmp_path)
    edit_config(tmp_path, moe_layer_freq=2, n_shared_experts=0)
    ours = load_model(tmp_path, dtype=torch.float32, progress=False)
    with torch.no_grad():
        assert (logprobs(ours, token_ids) - reference_logprobs(theirs, token_ids)).abs().max() <= 1e-4
    kinds = [isinstance(layer.feed_forward, MixtureOfExperts) for layer in ours.layers]
    assert kinds == [False, False, True, False, True]


def add_mtp_layer(folder: Path, layer: int, **extra: Tensor) -> dict[str, Tensor]:
    tensors = load_file(folder / SINGLE)
    copied = {
        name.replace("model.layers.2.", f"model.layers.{layer}."): weight.clone()
        for name, weight in tensors.items()
        if name.startswith("model.layers.2.")
    }
    norms = {name: torch.rand(64) for name in ("enorm.weight", "hnorm.weight", "shared_head.norm.weight")}
    own = {f"model.layers.{layer}.{name}": w for name, w in (norms | {"eh_proj.weight": torch.randn(64, 128)}).items()}
    own |= {f"model.layers.{layer}.{name.replace('__', '.')}.weight": weight for name, weight in extra.items()}
    save_file(tensors | copied | own, folder / SINGLE)
    return tensors


def test_mtp_layers_are_loaded_and_kept(
    checkpoint: Callable[..., tuple[Any, Path]],
    token_ids: list[int],
    run_model: Callable[..., Tensor],
    edit_config: Callable[..., None],
) -> None:
    _, folder = checkpoint("v3")
    plain = load_model(folder, dtype=torch.float32, progress=False)
    edit_config(folder, num_nextn_predict_layers=2)
    tensors = add_mtp_layer(folder, 3)
    head, embedding = tensors["lm_head.weight"], tensors["model.embed_tokens.weight"]
    add_mtp_layer(folder, 4, embed_tokens=embedding.clone(), shared_head__head=head + 1)
    model = load_model(folder, dtype=torch.float32, progress=False)
    shared, own = model.mtp_layers
    assert shared.embedding is None and shared.head is None and own.embedding is None and own.head is not None
    assert own.head.shape == (96, 64) and shared.projection.shape == (64, 128)
    assert shared.embedding_norm.shape == shared.hidden_norm.shape == shared.output_norm.shape == (64,)
    assert isinstance(shared.layer.attention, LatentAttention)
    assert isinstance(shared.layer.feed_forward, MixtureOfExperts)
    assert model.num_layers == 3 and model.memory_bytes > plain.memory_bytes
    assert memory_need(folder, dtype=torch.float32).weights == model.memory_bytes + embedding.nbytes
    assert torch.equal(run_model(model, token_ids), run_model(plain, token_ids))

    edit_config(folder, num_nextn_predict_layers=1)
    with pytest.raises(ModelError, match="extra tensor") as caught:
        load_model(folder, dtype=torch.float32, progress=False)
    assert caught.value.tensor is not None and caught.value.tensor.startswith("model.layers.4.")


def test_dropped_mtp_layers_are_a_warning_and_half_of_one_an_error(
    checkpoint: Callable[..., tuple[Any, Path]], edit_config: Callable[..., None], recwarn: pytest.WarningsRecorder
) -> None:
    _, folder = checkpoint("v3")
    edit_config(folder, num_nextn_predict_layers=...)
    assert load_model(folder, dtype=torch.float32, progress=False).mtp_layers == ()
    assert not [warning for warning in recwarn if "multi-token" in str(warning.message)]
    edit_config(folder, num_nextn_predict_layers=1)
    with pytest.warns(UserWarning, match="1 multi-token prediction layers"):
        assert load_model(folder, dtype=torch.float32, progress=False).mtp_layers == ()
    add_mtp_layer(folder, 3)
    tensors = load_file(folder / SINGLE)
    del tensors["model.layers.3.eh_proj.weight"]
    save_file(tensors, folder / SINGLE)
    with pytest.raises(ModelError, match="missing tensor") as caught:
        load_model(folder, dtype=torch.float32, progress=False)
    assert caught.value.tensor == "model.layers.3.eh_proj.weight"


def test_the_rotary_table_does_not_depend_on_how_it_grew() -> None:
    frequencies = [1.0, 0.1, 0.003]
    grown, whole = (RotaryTable(frequencies, 1.5, 9000) for _ in range(2))
    positions = torch.tensor([0, 1, 100, 5000, 8999])
    first = [grown.rows(positions[:count]) for count in (1, 2, 3, 4)][-1]
    want = whole.rows(positions)
    assert torch.equal(grown.rows(positions), want) and torch.equal(first, want[:4])
    angles = (positions.float().unsqueeze(1) * torch.tensor(frequencies)).double()
    assert torch.equal(want, (torch.stack((angles.cos(), angles.sin()), -1) * 1.5).float())
    with pytest.raises(AssertionError):
        grown.rows(torch.tensor([9000]))
