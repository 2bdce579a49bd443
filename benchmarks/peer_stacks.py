"""What `cpu_peers.py` compares: each stack runs prompts under a schema and says when each token came."""

import importlib
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

import drawloom as dl

__all__ = ["STACKS", "Drawloom", "Run", "Stack"]


@dataclass(frozen=True)
class Run:
    """Seconds. `stamps[i]` are the times at which request i got its tokens, counted from the start."""

    wall: float
    cpu: float
    stamps: list[list[float]]
    batch: int  # requests that run at the same time

    @property
    def ms_per_token(self) -> float:
        times = self.stamps[0]
        return 1e3 * (times[-1] - times[0]) / (len(times) - 1)

    @property
    def rate(self) -> float:
        return sum(map(len, self.stamps)) / self.wall

    @property
    def decode_rate(self) -> float:
        """Tokens a second while every request of a batch is decoding."""
        tokens, seconds = 0, 0.0
        for first in range(0, len(self.stamps), self.batch):
            rows = self.stamps[first : first + self.batch]
            start, end = max(times[0] for times in rows), min(times[-1] for times in rows)
            tokens += sum(start < stamp <= end for times in rows for stamp in times)
            seconds += end - start
        return tokens / seconds


class Stack(Protocol):
    def run(self, prompts: list[list[int]], constraint: dict[str, Any], new_tokens: int, batch: int) -> Run: ...


class Drawloom:
    def __init__(self, folder: Path, dtype: str, threads: int) -> None:
        kind: Any = dtype
        self.engine = dl.Engine(folder, dtype=kind, num_threads=threads, progress=False)

    def run(self, prompts: list[list[int]], constraint: dict[str, Any], new_tokens: int, batch: int) -> Run:
        self.engine.flush_cache()
        stamps: list[list[float]] = [[] for _ in prompts]
        left, done, faults = len(prompts), threading.Event(), []
        sampling = dl.SamplingParams(temperature=0, max_tokens=new_tokens)

        def receiver(times: list[float]) -> Callable[[Any], None]:
            def on_delta(delta: Any) -> None:
                nonlocal left
                if isinstance(delta, Exception):
                    faults.append(delta)
                else:
                    times.extend([time.perf_counter() - start] * len(delta.token_ids))
                if isinstance(delta, Exception) or delta.result is not None:
                    left -= 1
                    if left == 0:
                        done.set()

            return on_delta

        start, cpu = time.perf_counter(), time.process_time()
        grammar = dl.JSONSchema(constraint)
        for prompt, times in zip(prompts, stamps, strict=True):
            self.engine.submit(prompt, sampling, grammar, on_delta=receiver(times))
        done.wait()
        wall, cpu = time.perf_counter() - start, time.process_time() - cpu
        if faults:
            raise faults[0]
        return Run(wall, cpu, stamps, len(prompts))


class Transformers:
    def __init__(self, folder: Path, dtype: str, threads: int) -> None:
        transformers: Any = importlib.import_module("transformers")
        xgrammar: Any = importlib.import_module("xgrammar")
        torch.set_num_threads(threads)
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
        self.model = model.eval()
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
        self.processor: Any = importlib.import_module("xgrammar.contrib.hf").LogitsProcessor
        size = model.config.vocab_size
        eos = model.generation_config.eos_token_id
        info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=size, stop_token_ids=eos)
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=threads)

    def run(self, prompts: list[list[int]], constraint: dict[str, Any], new_tokens: int, batch: int) -> Run:
        stamps: list[list[float]] = []
        start, cpu = time.perf_counter(), time.process_time()
        compiled = self.compiler.compile_json_schema(json.dumps(constraint), any_whitespace=False)
        for first in range(0, len(prompts), batch):
            ids = torch.tensor(prompts[first : first + batch])
            times: list[float] = []

            def stamp(_: torch.Tensor, __: Any, times: list[float] = times, rows: int = len(ids)) -> torch.Tensor:
                times.append(time.perf_counter() - start)
                return torch.zeros(rows, dtype=torch.bool)

            with torch.inference_mode():
                self.model.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    do_sample=False,
                    max_new_tokens=new_tokens,
                    logits_processor=[self.processor([compiled] * len(ids))],
                    stopping_criteria=[stamp],
                )
            assert len(times) == new_tokens, "the schema takes more tokens than are asked for"
            stamps += [times] * len(ids)
        return Run(time.perf_counter() - start, time.process_time() - cpu, stamps, batch)


STACKS: dict[str, Callable[[Path, str, int], Stack]] = {"transformers + xgrammar": Transformers, "drawloom": Drawloom}
