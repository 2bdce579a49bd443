"""A tiny random model in a folder, and ways to run the command line: in this process, or as a user would."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ("<|im_start|>", "<|im_end|>")
HIDDEN, LAYERS, HEADS, HEAD_DIM, WIDTH = 48, 2, 3, 16, 64


def _write_tokenizer(folder: Path, template: str | None) -> int:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<|im_end|>"} | ({} if template is None else {"chat_template": template})
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return tokenizer.get_vocab_size()


def write_model(folder: Path, template: str | None = TEMPLATE) -> Path:
    folder.mkdir()
    vocab_size = _write_tokenizer(folder, template)
    random = np.random.default_rng(3)
    shapes = {"model.embed_tokens.weight": (vocab_size, HIDDEN), "lm_head.weight": (vocab_size, HIDDEN)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        shapes |= {f"{prefix}self_attn.{name}_proj.weight": (HEADS * HEAD_DIM, HIDDEN) for name in "qkvo"}
        shapes |= {f"{prefix}mlp.{name}_proj.weight": (WIDTH, HIDDEN) for name in ("gate", "up")}
        shapes[f"{prefix}mlp.down_proj.weight"] = (HIDDEN, WIDTH)
    tensors = {name: random.normal(0, 0.2, shape).astype(np.float32) for name, shape in shapes.items()}
    norms = [
        f"model.layers.{layer}.{name}_layernorm" for layer in range(LAYERS) for name in ("input", "post_attention")
    ]
    tensors |= {f"{name}.weight": np.ones(HIDDEN, np.float32) for name in [*norms, "model.norm"]}
    save_file(tensors, folder / "model.safetensors")
    config = {
        "model_type": "llama", "vocab_size": vocab_size, "hidden_size": HIDDEN, "intermediate_size": WIDTH,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "head_dim": HEAD_DIM,
        "max_position_embeddings": 1024, "tie_word_embeddings": False,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def untemplated_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "plain", None)


def _process_options() -> dict[str, Any]:
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    absolute = os.pathsep.join(os.path.abspath(path) for path in paths if path)
    return {"env": {**os.environ, "PYTHONPATH": absolute, "OMP_NUM_THREADS": "1"}}


@pytest.fixture(scope="session")
def start() -> Callable[..., "subprocess.Popen[bytes]"]:
    """`start("generate", …)`: a process of its own, its three streams piped."""

    def run(*arguments: object, **options: Any) -> "subprocess.Popen[Any]":
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        command = [sys.executable, "-P", "-m", "drawloom", *map(str, arguments)]
        process = subprocess.Popen(command, **streams | _process_options() | options)
        return process

    return run


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """`command("batch", …)`: exit status, stdout and stderr of a command in this process, which has torch already."""
    from drawloom.__main__ import main

    def run(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        status = main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return status, out, err

    return run


@pytest.fixture
def engine_options(model: Path) -> list[object]:
    return ["--model", model, "--dtype", "float32", "--threads", 1, "--kv-bytes", 4 << 20]


@pytest.fixture
def batch(
    command: Callable[..., tuple[int, str, str]], engine_options: list[object], tmp_path: Path
) -> Callable[..., tuple[int, str, list[dict[str, Any]]]]:
    """`batch(lines, *options)`: exit status, stderr and the entries of a batch of these lines, JSON values or bytes."""

    def run(lines: Sequence[Any], *options: object) -> tuple[int, str, list[dict[str, Any]]]:
        source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        encoded = [line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines]
        source.write_bytes(b"".join(encoded))
        status, out, err = command("batch", source, output, *engine_options, *options)
        assert out == ""
        written = output.read_bytes().splitlines() if output.exists() else []
        return status, err, [json.loads(line) for line in written]

    return run
