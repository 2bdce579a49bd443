"""Where a decoding step's time goes on the CPU, at 1 and 8 sequences that each write JSON under a schema.

    python benchmarks/cpu_step.py --json result.json [--model FOLDER] [--threads N]

Prints one row a number of sequences: milliseconds, medians over the decoding steps of one run. "outside" is everything
but the model's arithmetic and the sampler: scheduling, the tensors of the step, waiting for masks, committing, and what
is left of the step.
"""

import argparse
import json
import platform
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from datetime import date
from pathlib import Path
from typing import Any

import torch

import drawloom as dl
from drawloom.runtime.fingerprint import cpu_name

SCHEMA = {
    "type": "object",
    "properties": {
        "items": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "title": {"type": "string", "maxLength": 30},
                    "quantity": {"type": "integer", "minimum": 1, "maximum": 99},
                    "kind": {"enum": ["book", "music", "film"]},
                },
                "required": ["title", "quantity", "kind"],
                "additionalProperties": False,
            },
            "minItems": 8,
            "maxItems": 8,
        }
    },
    "required": ["items"],
    "additionalProperties": False,
}
PARTS = ("schedule", "tensors", "model", "head", "mask wait", "sample", "commit")


class Stopwatch:
    """Adds up what each wrapped call takes, step by step."""

    def __init__(self) -> None:
        self.current: dict[str, float] = defaultdict(float)
        self.steps: list[dict[str, float]] = []

    def wrap(self, owner: Any, method: str, part: str) -> None:
        original: Callable[..., Any] = getattr(owner, method)

        def timed(*args: Any, **options: Any) -> Any:
            start = time.perf_counter()
            try:
                return original(*args, **options)
            finally:
                self.current[part] += time.perf_counter() - start

        # A model is frozen, and a wrapper is no part of its state.
        object.__setattr__(owner, method, timed)

    def wrap_masks(self, filler: Any) -> None:
        original = filler.start

        def start(sequences: Any) -> "Future[Any]":
            future: Future[Any] = original(sequences)
            self.wrap(future, "result", "mask wait")
            return future

        filler.start = start

    def wrap_step(self, loop: Any) -> None:
        original = loop.step

        def step() -> None:
            self.current = defaultdict(float)
            start = time.perf_counter()
            original()
            self.current["step"] = time.perf_counter() - start
            self.current["rows"] = len(loop.scheduler._running)
            self.steps.append(self.current)

        loop.step = step


def watch(engine: dl.Engine) -> Stopwatch:
    watch, loop = Stopwatch(), engine._loop
    watch.wrap(loop.scheduler, "schedule", "schedule")
    watch.wrap(loop.scheduler, "commit", "commit")
    watch.wrap(loop._runner, "prepare", "tensors")
    watch.wrap(loop._runner._model, "forward", "model")
    watch.wrap(loop._runner._model, "logits", "head")
    watch.wrap(loop._sampler, "sample", "sample")
    watch.wrap_masks(loop._masks)
    watch.wrap_step(loop)
    return watch


def measure(engine: dl.Engine, stopwatch: Stopwatch, number: int, context: int) -> dict[str, float]:
    engine.flush_cache()
    prompts = [[(7 * index + 13 * row) % 40000 for index in range(context)] for row in range(number)]
    sampling = [dl.SamplingParams(temperature=0.8, seed=row, max_tokens=80) for row in range(number)]
    engine.generate(prompts, sampling, dl.JSONSchema(SCHEMA))
    stopwatch.steps.clear()
    engine.generate(prompts, sampling, dl.JSONSchema(SCHEMA))
    # The first steps read the prompts' last tokens; the last ones have rows that ended.
    steps = [step for step in stopwatch.steps[4:] if step["rows"] == number]
    row = {part: 1e3 * statistics.median(step[part] for step in steps) for part in (*PARTS, "step")}
    row["outside"] = 1e3 * statistics.median(
        step["step"] - step["model"] - step["head"] - step["sample"] for step in steps
    )
    return {"sequences": number, "steps": len(steps), **row}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, help="write the numbers here")
    parser.add_argument("--model", help="a Hugging Face folder; default: the embedded model")
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--context", type=int, default=300, help="prompt tokens of each sequence")
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 8])
    options = parser.parse_args()
    with dl.Engine(options.model, dtype=options.dtype, num_threads=options.threads) as engine:
        stopwatch = watch(engine)
        rows = [measure(engine, stopwatch, number, options.context) for number in options.sequences]
        fingerprint = engine.fingerprint
    columns = ["sequences", *PARTS, "step", "outside"]
    print(" ".join(f"{column:>9}" for column in columns))
    for row in rows:
        print(" ".join(f"{row[column]:9.2f}" if column != "sequences" else f"{row[column]:9.0f}" for column in columns))
    if options.json is not None:
        about = {"date": date.today().isoformat(), "cpu": cpu_name(), "python": platform.python_version()}
        about |= {"threads": options.threads, "context": options.context, "fingerprint": fingerprint}
        options.json.write_text(json.dumps({**about, "milliseconds": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
