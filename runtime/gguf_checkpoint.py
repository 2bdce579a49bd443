"""A Llama model in a GGUF file, rewritten as a Hugging Face folder of exact fp32 values."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tqdm import tqdm  # type: ignore[import-untyped]

from ..errors import ModelError
from .gguf_tokenizer import build_tokenizer, tokenizer_settings

if TYPE_CHECKING:
    from gguf import GGUFReader

__all__ = ["CHECKPOINT_FILES", "convert_llama"]

CHECKPOINT_FILES = (
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
)
_OUTER_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert_llama(source: Path, folder: Path, *, progress: bool = True) -> None:
    """Write the model and tokenizer of the GGUF file `source` into the existing, empty `folder`.

    The folder is a standard checkpoint: transformers' LlamaForCausalLM loads it. Weights are the file's quantised
    values, dequantised exactly to fp32. A bar on stderr shows the progress. Anything in the file that this format could
    not express (another architecture, scaled rotary embedding, unknown tensors): `ModelError`. Needs package `gguf`.
    """
    layout = "{desc}: {percentage:3.0f}% |{bar}| {elapsed}"
    with tqdm(total=100, desc="Converting the model, once", bar_format=layout, disable=not progress) as bar:
        reader = _open(source)
        fields = _Fields((name, field.contents()) for name, field in reader.fields.items())
        bar.update(45)  # the file's 100,000 strings take about that share of the time
        config = llama_config(fields, tied=all(tensor.name != "output.weight" for tensor in reader.tensors))
        tensors = {}
        for name, tensor in _tensors(reader, config, source):
            tensors[name] = tensor
            bar.update(40 / len(reader.tensors))
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        bar.update(bar.total - bar.n)
    build_tokenizer(fields).save(str(folder / "tokenizer.json"))
    _write_json(folder / "config.json", config)
    _write_json(folder / "tokenizer_config.json", tokenizer_settings(fields))
    ids = {role: fields.get(f"tokenizer.ggml.{role}_token_id") for role in ("bos", "eos")}
    generation = {f"{role}_token_id": index for role, index in ids.items() if index is not None}
    _write_json(folder / "generation_config.json", generation)


def llama_config(fields: Mapping[str, Any], *, tied: bool) -> dict[str, Any]:
    """The content of config.json from a GGUF file's fields."""
    if fields.get("general.architecture") != "llama":
        raise ModelError(f"the GGUF file holds architecture {fields.get('general.architecture')!r}, not 'llama'")
    refused = [key for key in fields if key.startswith(("llama.rope.scaling", "llama.expert"))]
    if refused:
        raise ModelError(f"the GGUF file asks for what a plain Llama model lacks: {', '.join(refused)}")
    heads, width = fields["llama.attention.head_count"], fields["llama.embedding_length"]
    head_dim = fields.get("llama.attention.key_length", width // heads)
    if fields.get("llama.rope.dimension_count", head_dim) != head_dim:
        raise ModelError("the GGUF file rotates only a part of each head, which a plain Llama model does not")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "float32",
        "vocab_size": fields.get("llama.vocab_size", len(fields["tokenizer.ggml.tokens"])),
        "hidden_size": width,
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": fields.get("llama.attention.head_count_kv", heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": _shortest(fields["llama.attention.layer_norm_rms_epsilon"]),
        "rope_theta": _shortest(fields.get("llama.rope.freq_base", 10000.0)),
        "max_position_embeddings": fields["llama.context_length"],
        "tie_word_embeddings": tied,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": fields.get("tokenizer.ggml.eos_token_id"),
    }


class _Fields(dict[str, Any]):
    def __missing__(self, key: str) -> Any:
        raise ModelError(f"the GGUF file lacks the field {key!r}")


def _open(source: Path) -> "GGUFReader":
    from gguf import GGUFReader

    class Reader(GGUFReader):
        """Keeps the file as a plain array: taking slices of a `numpy.memmap` more than doubles the time."""

        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value.view(np.ndarray) if isinstance(value, np.memmap) else value)

    try:
        return Reader(source)
    except (OSError, ValueError, IndexError) as error:
        raise ModelError(f"can't read the GGUF file: {error}", file=str(source)) from error


def _tensors(
    reader: "GGUFReader", config: Mapping[str, Any], source: Path
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    from gguf.quants import dequantize

    expected = _expected_shapes(config)
    for tensor in reader.tensors:
        name = _hugging_face_name(tensor.name)
        if name not in expected:
            raise ModelError("unknown tensor", tensor=tensor.name, file=str(source))
        values = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        if values.shape != expected[name]:
            shapes = (expected[name], values.shape)
            raise ModelError("misshapen tensor", tensor=tensor.name, file=str(source), shapes=shapes)
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            values = _halves(values, config["head_dim"])
        del expected[name]
        yield name, values
    if expected:
        raise ModelError("missing tensor", tensor=next(iter(expected)), file=str(source))


def _halves(weight: NDArray[np.float32], head_dim: int) -> NDArray[np.float32]:
    """Rotary pairs lie side by side in GGUF's rows of a head, and half a head apart in a Hugging Face checkpoint."""
    rows, columns = weight.shape
    pairs = weight.reshape(rows // head_dim, head_dim // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows, columns)


def _hugging_face_name(name: str) -> str | None:
    if name in _OUTER_NAMES:
        return _OUTER_NAMES[name]
    match name.split("."):
        case ["blk", layer, part, "weight"] if part in _LAYER_NAMES:
            return f"model.layers.{layer}.{_LAYER_NAMES[part]}.weight"
    return None


def _expected_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    width, inner, head_dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = (config[f"num_{kind}_heads"] * head_dim for kind in ("attention", "key_value"))
    layer = {
        "input_layernorm": (width,),
        "self_attn.q_proj": (queries, width),
        "self_attn.k_proj": (keys, width),
        "self_attn.v_proj": (keys, width),
        "self_attn.o_proj": (width, queries),
        "post_attention_layernorm": (width,),
        "mlp.gate_proj": (inner, width),
        "mlp.up_proj": (inner, width),
        "mlp.down_proj": (width, inner),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], width),
        "model.norm.weight": (width,),
    }
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], width)
    for index in range(config["num_hidden_layers"]):
        shapes.update({f"model.layers.{index}.{name}.weight": shape for name, shape in layer.items()})
    return shapes


def _shortest(value: float) -> float:
    """The shortest decimal of an fp32 value: 1e-05 where the file's field reads 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
