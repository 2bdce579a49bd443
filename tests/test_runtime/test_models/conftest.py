"""Tiny random checkpoints that transformers wrote, and a way to run a model over one sequence."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from drawloom.kernels.dispatch import plan_attention
from drawloom.runtime.batch import ForwardInput
from drawloom.runtime.models.deepseek import Model

PAGE_SIZE = 64
VOCAB_SIZE = 96
SHAPE = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 8192,
}  # fmt: skip
LATENT = {
    "moe_intermediate_size": 32, "kv_lora_rank": 32, "q_lora_rank": 24, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8, "v_head_dim": 24, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}  # fmt: skip
V3_GATE = {"n_group": 4, "topk_group": 2, "num_nextn_predict_layers": 0}


def _make(kind: str, changes: dict[str, Any], std: float) -> Any:
    import transformers

    name = {"v2": "DeepseekV2", "v3": "DeepseekV3", "llama": "Llama"}[kind]
    settings = SHAPE | ({} if kind == "llama" else LATENT) | (V3_GATE if kind == "v3" else {}) | changes
    config = getattr(transformers, f"{name}Config")(**settings)
    config._attn_implementation = "eager"
    torch.manual_seed(11)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with torch.no_grad():
        for key, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if "norm" in key:
                tensor.uniform_(0.5, 1.5)
            elif "e_score_correction_bias" in key:
                tensor.normal_(0, 0.2)
            elif "inv_freq" not in key:
                tensor.normal_(0, std)
    return model


@pytest.fixture(scope="session")
def make_hugging_face() -> Callable[..., Any]:
    """`make(kind, std=0.15, **settings)`: a transformers model "v2", "v3" or "llama" whose every part matters."""

    def make(kind: str, std: float = 0.15, **settings: Any) -> Any:
        return _make(kind, settings, std)

    return make


@pytest.fixture
def checkpoint(make_hugging_face: Callable[..., Any], tmp_path: Path) -> Callable[..., tuple[Any, Path]]:
    """`checkpoint(kind, ...)`: such a model, and the folder it was saved in."""

    def write(kind: str, **settings: Any) -> tuple[Any, Path]:
        model = make_hugging_face(kind, **settings)
        model.save_pretrained(tmp_path / kind)
        return model, tmp_path / kind

    return write


@pytest.fixture(scope="session")
def token_ids() -> list[int]:
    return torch.randint(0, VOCAB_SIZE, (300,), generator=torch.Generator().manual_seed(5)).tolist()


def _run(model: Model, ids: Sequence[int], chunks: Sequence[int], positions: Sequence[int] | None) -> Tensor:
    num_pages = -(-len(ids) // PAGE_SIZE)
    cache = torch.zeros(model.num_layers, num_pages + 1, PAGE_SIZE, model.cache_width, dtype=model.dtype)
    pages = list(range(num_pages, 0, -1))  # not in order
    places = list(range(len(ids)))
    slots = [pages[place // PAGE_SIZE] * PAGE_SIZE + place % PAGE_SIZE for place in places]
    hidden, start = [], 0
    with torch.inference_mode():
        for length in chunks:
            end = start + length
            plan = plan_attention([pages], [end], [length], page_size=PAGE_SIZE, heads_per_group=model.heads_per_group)
            inputs = ForwardInput(
                torch.tensor(ids[start:end]),
                torch.tensor((positions or places)[start:end]),
                torch.tensor(slots[start:end]),
                plan,
            )
            hidden.append(model.forward(inputs, cache))
            start = end
        assert start == len(ids)
        return torch.cat(hidden)


@pytest.fixture(scope="session")
def run_model() -> Callable[..., Tensor]:
    """`run_model(model, ids, chunks=None, positions=None)`: hidden states of one sequence, whole or in chunks."""

    def run(
        model: Model, ids: Sequence[int], chunks: Sequence[int] | None = None, positions: Sequence[int] | None = None
    ) -> Tensor:
        return _run(model, ids, chunks or [len(ids)], positions)

    return run


@pytest.fixture(scope="session")
def logprobs(run_model: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`logprobs(model, ids)`: fp32 [positions, vocabulary] of one sequence."""

    def compute(model: Model, ids: Sequence[int], positions: Sequence[int] | None = None) -> Tensor:
        return model.logits(run_model(model, ids, positions=positions)).log_softmax(-1)

    return compute


@pytest.fixture(scope="session")
def reference_logprobs() -> Callable[..., Tensor]:
    """`reference_logprobs(model, ids, positions=None)`: the same from a transformers model."""

    def compute(model: Any, ids: Sequence[int], positions: Sequence[int] | None = None) -> Tensor:
        size = len(ids)
        hidden = torch.ones(size, size, dtype=torch.bool).triu(1)
        mask = torch.zeros(size, size).masked_fill(hidden, torch.finfo(torch.float32).min)[None, None]
        where = torch.tensor([positions or list(range(size))])
        with torch.no_grad():
            logits: Tensor = model(torch.tensor([ids]), attention_mask=mask, position_ids=where).logits
        return logits[0].log_softmax(-1)

    return compute


@pytest.fixture(scope="session")
def edit_config() -> Callable[..., None]:
    """`edit_config(folder, key=value, …)`: change config.json; `...` removes a key."""

    def edit(folder: Path, **changes: Any) -> None:
        values = json.loads((folder / "config.json").read_text()) | changes
        kept = {key: value for key, value in values.items() if value is not ...}
        (folder / "config.json").write_text(json.dumps(kept))

    return edit
