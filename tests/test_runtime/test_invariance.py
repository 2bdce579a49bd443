"""Batch invariance: ids and log-probabilities are a function of the request alone, bit for bit.

Every test compares exactly and asserts that the situation it speaks of occurred.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from drawloom import Choice, Engine, JSONSchema, Regex, Result, SamplingParams

MakeEngine = Callable[..., Engine]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "n": {"type": "integer"}},
    "required": ["name", "n"],
    "additionalProperties": False,
}


class Workload:
    """Random ragged prompts, some with a common beginning, each with sampling parameters and perhaps a constraint."""

    def __init__(self, seed: int, size: int = 12) -> None:
        rng = random.Random(seed)
        common = [rng.randrange(256) for _ in range(300)]
        self.prompts: list[list[int]] = []
        self.sampling: list[SamplingParams] = []
        self.constraints: list[Any] = []
        for index in range(size):
            own = [rng.randrange(256) for _ in range(rng.choice([1, 2, 5, 40, 130, 260]))]
            self.prompts.append((common[: rng.choice([70, 200, 300])] if index % 2 else []) + own)
            self.sampling.append(
                SamplingParams(
                    temperature=rng.choice([0.0, 0.7, 1.3]),
                    top_p=rng.choice([1.0, 0.8]),
                    top_k=rng.choice([0, 20]),
                    min_p=rng.choice([0.0, 0.05]),
                    seed=rng.randrange(2**63),
                    max_tokens=rng.choice([1, 8, 24]),
                )
            )
            self.constraints.append(
                rng.choice([None, None, Regex("[a-z]{3,9}"), JSONSchema(SCHEMA), Choice(["yes", "no"])])
            )

    def run(self, engine: Engine, order: Sequence[int] | None = None) -> list[Result]:
        """All at once, handed over in `order`; results by index."""
        order = range(len(self.prompts)) if order is None else order
        results = engine.generate(
            [self.prompts[index] for index in order],
            [self.sampling[index] for index in order],
            [self.constraints[index] for index in order],
        )
        return [result for _, result in sorted(zip(order, results, strict=True), key=lambda pair: pair[0])]

    def run_alone(self, engine: Engine) -> list[Result]:
        """One after the other, each with an empty cache."""
        results = []
        for index in range(len(self.prompts)):
            engine.flush_cache()
            results += self.run_one(engine, index)
            assert results[-1].cached_tokens == 0
        return results

    def run_one(self, engine: Engine, index: int) -> list[Result]:
        return engine.generate([self.prompts[index]], [self.sampling[index]], [self.constraints[index]])


def assert_same(found: Sequence[Result], wanted: Sequence[Result]) -> None:
    for index, (left, right) in enumerate(zip(found, wanted, strict=True)):
        assert left.token_ids == right.token_ids, index
        assert torch.equal(torch.tensor(left.logprobs), torch.tensor(right.logprobs)), index
        assert (left.text, left.finish_reason) == (right.text, right.finish_reason), index


@pytest.fixture(params=[("deepseek", "float32"), ("deepseek", "bfloat16"), ("llama", "float32"), ("llama", "bfloat16")])
def model(request: pytest.FixtureRequest) -> dict[str, str]:
    kind, dtype = request.param
    return {"kind": kind, "dtype": dtype}


def test_batch_row_order_and_a_warm_cache(model: dict[str, str], tiny_engine: MakeEngine) -> None:
    work = Workload(1)
    engine = tiny_engine(**model)
    alone = work.run_alone(engine)
    assert len({tuple(result.token_ids) for result in alone}) > 6, "the requests must differ for this to mean anything"
    engine.flush_cache()
    together = work.run(engine)
    assert_same(together, alone)
    assert engine.metrics()["peak_running"] > 4
    warm = work.run(engine, list(range(len(work.prompts)))[::-1])
    assert_same(warm, alone)
    assert sum(result.cached_tokens > 0 for result in warm) > 8
    order = list(range(len(work.prompts)))
    random.Random(3).shuffle(order)
    engine.flush_cache()
    assert_same(work.run(engine, order), alone)


@pytest.mark.parametrize("chunk", [5, 33])
def test_chunk_size(model: dict[str, str], tiny_engine: MakeEngine, chunk: int) -> None:
    work = Workload(2, size=8)
    alone = work.run_alone(tiny_engine(**model))
    engine = tiny_engine(**model, max_batch_tokens=chunk, max_sequences=5)
    assert_same(work.run(engine), alone)
    longest = max(map(len, work.prompts))
    assert engine.metrics()["steps"] > longest // chunk > 5


def test_a_partly_warm_cache_to_the_token(model: dict[str, str], tiny_engine: MakeEngine) -> None:
    work = Workload(4, size=1)
    prompt = [index * 7 % 250 for index in range(330)]
    work.prompts[0] = prompt
    engine = tiny_engine(**model)
    (cold,) = work.run_alone(engine)
    for shared in (1, 63, 64, 65, 255, 256, 300, 329):
        engine.flush_cache()
        engine.generate(prompt[:shared] + [255 - prompt[shared], 3], SamplingParams(max_tokens=2, seed=1))
        (warm,) = work.run_one(engine, 0)
        assert warm.cached_tokens == shared
        assert_same([warm], [cold])


def test_pause_and_resume_under_memory_pressure(model: dict[str, str], tiny_engine: MakeEngine) -> None:
    work = Workload(5, size=10)
    for index in range(len(work.prompts)):
        work.prompts[index] = work.prompts[index][:60]
        work.constraints[index] = Regex("[a-z]{80,90}") if index % 2 else None
        work.sampling[index] = SamplingParams(temperature=0.8, seed=index, max_tokens=90, ignore_eos=True)
    roomy = tiny_engine(**model)
    alone = work.run_alone(roomy)
    engine = tiny_engine(**model, page_size=16, kv_bytes=_pool_bytes(roomy, tokens=400))
    assert_same(work.run(engine), alone)
    assert engine.metrics()["pauses"] > 3
    assert engine.metrics()["computed_tokens"] > roomy.metrics()["computed_tokens"] - 10 * 60


def _pool_bytes(engine: Engine, tokens: int) -> int:
    return tokens * engine._loop._runner._model.cache_bytes_per_token


def test_page_size(model: dict[str, str], tiny_engine: MakeEngine) -> None:
    work = Workload(6, size=6)
    alone = work.run_alone(tiny_engine(**model))
    assert_same(work.run(tiny_engine(**model, page_size=8)), alone)


def test_a_neighbour_without_a_seed_changes_nothing(tiny_engine: MakeEngine) -> None:
    """D30: a seeded request beside one that draws its own seed."""
    engine = tiny_engine()
    seeded, other = (
        SamplingParams(temperature=0.8, seed=42, max_tokens=16),
        SamplingParams(temperature=0.8, max_tokens=16),
    )
    prompts = [[1, 2, 3], [4, 5, 6, 7]]
    alone = engine.generate(prompts[:1], [seeded])
    outputs = set()
    for _ in range(5):
        first, neighbour = engine.generate(prompts, [seeded, other])
        behind, again = engine.generate(prompts[::-1], [other, seeded])
        assert_same([first, again], alone * 2)
        outputs |= {tuple(neighbour.token_ids), tuple(behind.token_ids)}
    assert len(outputs) > 1, "the neighbour draws seeds, so its outputs differ"


def test_as_row_0_7_and_15_of_ragged_neighbours(tiny_engine: MakeEngine) -> None:
    """D28: greedy, alone and at three places among fifteen prompts of lengths 3 to 900."""
    rng = random.Random(8)
    engine = tiny_engine(max_batch_tokens=700)
    greedy = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)
    prompt = [rng.randrange(256) for _ in range(50)]
    neighbours = [
        [rng.randrange(256) for _ in range(length)] for length in (3, 900, *(rng.randint(3, 900) for _ in range(13)))
    ]
    alone = engine.generate([prompt], greedy)
    for row in (0, 7, 15):
        engine.flush_cache()
        results = engine.generate(neighbours[:row] + [prompt] + neighbours[row:], greedy)
        assert_same([results[row]], alone)
    assert engine.metrics()["peak_running"] == 16


def test_cold_cold_warm_and_warm_with_a_longer_neighbour(tiny_engine: MakeEngine) -> None:
    """D29: the cache is really hit, and changes nothing."""
    rng = random.Random(9)
    engine = tiny_engine()
    greedy = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    prompt = [rng.randrange(256) for _ in range(512)]
    longer = prompt[:511] + [rng.randrange(256) for _ in range(200)]
    runs = []
    for warm in (False, False, True):
        if not warm:
            engine.flush_cache()
        runs.append(engine.generate(prompt, greedy))
    assert [run.cached_tokens for run in runs] == [0, 0, 511]
    beside, neighbour = engine.generate([prompt, longer], greedy)
    assert beside.cached_tokens == 511 and neighbour.cached_tokens == 511
    assert_same([*runs[1:], beside], runs[:1] * 3)


def test_positive_control_without_invariance_bits_move(tiny_engine: MakeEngine) -> None:
    """The same comparison fails once invariance is off, so it can fail."""
    work = Workload(1)
    engine = tiny_engine(kind="llama", invariant=False)
    alone = work.run_alone(engine)
    engine.flush_cache()
    together = work.run(engine)
    assert any(left.logprobs != right.logprobs for left, right in zip(together, alone, strict=True))
    assert "invariant=off" in alone[0].fingerprint


def test_positive_control_seeds_matter(tiny_engine: MakeEngine) -> None:
    engine = tiny_engine()
    outputs = {tuple(engine.generate([1, 2], SamplingParams(seed=seed, max_tokens=8)).token_ids) for seed in range(8)}
    assert len(outputs) > 4
