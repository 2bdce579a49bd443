"""Tiny random models with a byte-level tokenizer, in Hugging Face folders that transformers wrote."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from drawloom import Engine

VOCAB_SIZE = 272
EOS = "<eos>"
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
    "initializer_range": 0.15,
    "max_position_embeddings": 2048,
}
LLAMA = {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16}
DEEPSEEK = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
    "num_nextn_predict_layers": 0,
}


def write_tokenizer(folder: Path) -> None:
    """256 bytes, a few merges that cross JSON punctuation, and two special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "Ġ"), ("t", "h"), ("th", "e"), ('"', ":"), ("a", "b"), ("1", "0"), ('"', "}"), ("e", "r")]
    vocab = {token: index for index, token in enumerate(alphabet)}
    for left, right in merges:
        vocab[left + right] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<bos>", special=True), AddedToken(EOS, special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": EOS, "bos_token": "<bos>"}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": tokenizer.token_to_id(EOS)}))


def write_checkpoint(folder: Path, kind: str) -> None:
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)
    model: Any
    if kind == "llama":
        model = LlamaForCausalLM(LlamaConfig(**SHAPE | LLAMA))
    else:
        model = DeepseekV3ForCausalLM(DeepseekV3Config(**SHAPE | DEEPSEEK))
    model.to(torch.float32).save_pretrained(folder)
    write_tokenizer(folder)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`tiny_folder(kind)`: "deepseek" (V3: groups, bias, shared expert, dense first layer) or "llama" (grouped)."""
    made: dict[str, Path] = {}

    def get(kind: str) -> Path:
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind)
            write_checkpoint(folder, kind)
            made[kind] = folder
        return made[kind]

    return get


@pytest.fixture
def tiny_engine(tiny_folder: Callable[[str], Path]) -> Iterator[Callable[..., Engine]]:
    """`tiny_engine(kind, **options)`: an engine that is closed, and whose pages are counted, after the test."""
    engines: list[Engine] = []

    def make(kind: str = "deepseek", **options: Any) -> Engine:
        defaults: dict[str, Any] = {"dtype": "float32", "num_threads": 1, "kv_bytes": 8 << 20, "progress": False}
        engines.append(Engine(tiny_folder(kind), **defaults | options))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()
        engine._loop.scheduler.check_integrity()
        pages = engine._loop.scheduler.cache.counts()
        assert pages["free"] + pages["evictable"] == pages["total"], "a request that has ended holds pages"
