"""GGUF files of tiny Llama models become the Hugging Face checkpoints they were made from."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import pre_tokenizers

from drawloom.errors import ModelError
from drawloom.runtime.gguf_checkpoint import CHECKPOINT_FILES, convert_llama
from drawloom.runtime.tokenizer import Tokenizer

gguf = pytest.importorskip("gguf")

HEADS, GROUPS, HEAD_DIM, WIDTH, INNER, LAYERS = 4, 2, 8, 32, 64, 2
SPECIAL = ["<|start|>", "<|end|>", "<think>"]
MERGES = ["t h", "th e", "Ġ Ġ", "ĠĠ Ġ", "1 2"]
TOKENS = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES)]
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def llama(*, tied: bool) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=len(TOKENS), hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=GROUPS, head_dim=HEAD_DIM, max_position_embeddings=512,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0}, rms_norm_eps=1e-5, tie_word_embeddings=tied,
    )  # fmt: skip
    model: Any = LlamaForCausalLM(config)
    model.to(torch.float32).eval()
    for parameter in model.parameters():  # norms too, so that no mix-up goes unseen
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def gguf_name(name: str) -> str:
    outer = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    stem = name.removesuffix(".weight")
    if stem in outer:
        return f"{outer[stem]}.weight"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{LAYER_NAMES[part]}.weight"


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp keeps the two halves of a rotary pair in neighbouring rows."""
    first, second = np.split(weight.reshape(heads, HEAD_DIM, -1), 2, axis=1)
    return np.stack([first, second], axis=2).reshape(weight.shape)


def default_fields() -> dict[str, Any]:
    return {
        "llama.block_count": LAYERS,
        "llama.context_length": 512,
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": INNER,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": GROUPS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 5000.0,
        "llama.rope.dimension_count": HEAD_DIM,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [3, 3, 4] + [1] * (len(TOKENS) - 3),
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.chat_template": "{{ bos_token }}{% for m in messages %}{{ m.content }}<|end|>{% endfor %}",
    }


def write(path: Path, model: Any, fields: dict[str, Any], *, arch: str = "llama", quantised: bool = False) -> None:
    writer = gguf.GGUFWriter(path, arch)
    for key, value in fields.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_uint32(key, value)
    for name, parameter in model.named_parameters():
        values = parameter.detach().numpy()
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            values = interleaved(values, HEADS if "q_proj" in name else GROUPS)
        kind = gguf.GGMLQuantizationType.Q8_0
        if quantised and values.ndim == 2:
            writer.add_tensor(gguf_name(name), gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(gguf_name(name), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def convert(tmp_path: Path) -> Callable[..., Path]:
    """`convert(model, fields, **options)`: through a GGUF file into a folder."""

    def run(model: Any, fields: dict[str, Any] | None = None, **options: Any) -> Path:
        write(tmp_path / "model.gguf", model, default_fields() if fields is None else fields, **options)
        folder = tmp_path / "converted"
        folder.mkdir()
        convert_llama(tmp_path / "model.gguf", folder, progress=False)
        return folder

    return run


@pytest.mark.parametrize("tied", [True, False])
def test_transformers_loads_the_same_model(convert: Callable[..., Path], tied: bool) -> None:
    from transformers import LlamaForCausalLM

    model = llama(tied=tied)
    folder = convert(model)
    assert sorted(path.name for path in folder.iterdir()) == sorted(CHECKPOINT_FILES)
    loaded = LlamaForCausalLM.from_pretrained(folder)
    ours, theirs = loaded.state_dict(), model.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    ids = torch.arange(len(TOKENS))[None]
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, model(ids).logits)
    assert loaded.generation_config.eos_token_id == 1
    assert json.loads((folder / "config.json").read_text())["rms_norm_eps"] == 1e-5


def test_quantised_values_are_kept_exactly(convert: Callable[..., Path]) -> None:
    """An 8-bit block holds whole multiples of its fp16 scale."""
    from safetensors.numpy import load_file

    model = llama(tied=True)
    tensors = load_file(convert(model, quantised=True) / "model.safetensors")
    assert all(values.dtype == np.float32 for values in tensors.values())
    weight = tensors["model.layers.1.mlp.down_proj.weight"].reshape(-1, 32)
    original = dict(model.named_parameters())["model.layers.1.mlp.down_proj.weight"].detach().numpy().reshape(-1, 32)
    scale = (np.abs(original).max(axis=1, keepdims=True) / 127).astype(np.float16).astype(np.float32)
    assert np.array_equal(weight, np.rint(weight / scale) * scale)
    assert not np.array_equal(weight, original)
    assert np.abs(weight - original).max() < 0.6 * scale.max()


def test_the_tokenizer_of_the_file(convert: Callable[..., Path]) -> None:
    tokenizer = Tokenizer.from_folder(convert(llama(tied=True)), vocab_size=len(TOKENS))
    assert dict(tokenizer.special_ids) == {name: index for index, name in enumerate(SPECIAL)}
    assert (tokenizer.bos_id, tokenizer.add_bos, tokenizer.eos_ids) == (0, True, (1,))
    assert tokenizer.chat_template == default_fields()["tokenizer.chat_template"]
    spelled = [TOKENS[index] for index in tokenizer.encode("the   12 <think>")]
    assert spelled == ["the", "ĠĠĠ", "1", "2", "Ġ", "<", "th", "i", "n", "k", ">"]


def test_the_older_split_keeps_numbers_together(convert: Callable[..., Path]) -> None:
    fields = default_fields() | {"tokenizer.ggml.pre": "gpt-2"}
    tokenizer = Tokenizer.from_folder(convert(llama(tied=True), fields), vocab_size=len(TOKENS))
    assert [TOKENS[index] for index in tokenizer.encode("the   12")] == ["the", "ĠĠ", "Ġ", "12"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.pre": "tekken"}, "splits words by the rule 'tekken'"),
        ({"tokenizer.ggml.model": "llama"}, "kind 'llama'"),
        ({"llama.rope.scaling.type": "yarn"}, r"a plain Llama model lacks: llama\.rope\.scaling\.type"),
        ({"llama.expert_count": 8}, r"llama\.expert_count"),
        ({"llama.rope.dimension_count": 4}, "rotates only a part"),
        ({"llama.feed_forward_length": 48}, r"misshapen tensor.*ffn_\w+\.weight.*expected shape \[.*found \["),
        ({"llama.block_count": 3}, r"missing tensor; tensor model\.layers\.2\."),
        ({"llama.block_count": 1}, r"unknown tensor; tensor blk\.1\."),
        ({"llama.block_count": None}, r"lacks the field 'llama\.block_count'"),
    ],
)
def test_what_the_format_can_not_express_is_refused(
    convert: Callable[..., Path], change: dict[str, Any], message: str
) -> None:
    fields = {key: value for key, value in (default_fields() | change).items() if value is not None}
    with pytest.raises(ModelError, match=message):
        convert(llama(tied=True), fields)


def test_another_architecture_and_a_broken_file_are_refused(convert: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="architecture 'qwen2'"):
        convert(llama(tied=True), arch="qwen2")
    for content in (b"", b"GGUF", b"no model at all" * 10):
        (tmp_path / "broken.gguf").write_bytes(content)
        with pytest.raises(ModelError, match=r"can't read the GGUF file.*broken\.gguf"):
            convert_llama(tmp_path / "broken.gguf", tmp_path, progress=False)
