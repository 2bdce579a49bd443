"""The scheduler without a model: what runs in a step, pressure, faults, and the account of pages after each event."""

import random
from typing import Any

import pytest

from drawloom import Delta, EngineError, SamplingParams
from drawloom.runtime.detokenizer import Detokenizer
from drawloom.runtime.kv_cache import KVCache
from drawloom.runtime.plan import Plan
from drawloom.runtime.radix_cache import Namespace
from drawloom.runtime.request import Request
from drawloom.runtime.sampler import Sampled
from drawloom.runtime.scheduler import Scheduler
from drawloom.runtime.sequence import Sequence, State


class Bytes:
    """A vocabulary of 256 single bytes."""

    size = 256
    special_ids: frozenset[int] = frozenset()

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id])


class Bench:
    def __init__(self, *, num_pages: int, page_size: int = 4, **options: Any) -> None:
        cache = KVCache(num_pages, page_size, Namespace("m"))
        options = {"max_batch_tokens": 16, "max_sequences": 8} | options
        self.scheduler = Scheduler(cache, fingerprint="f", **options)
        self.received: dict[Sequence, list[Any]] = {}
        self.count = 0

    def add(
        self, prompt: list[int], *, max_tokens: int = 5, priority: int = 0, score_from: int | None = None
    ) -> Sequence:
        received: list[Any] = []
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        request = Request(tuple(prompt), sampling, 0, received.append, priority=priority, score_from=score_from)
        sequence = Sequence(
            request,
            self.count,
            max_len=self.scheduler.cache.num_tokens,
            eos_ids=frozenset(),
            detokenizer=Detokenizer(Bytes()),
        )
        self.count += 1
        self.received[sequence] = received
        self.scheduler.add(sequence)
        return sequence

    def commit(self, plan: Plan) -> None:
        """Pretend that the model ran: the next token is a hash of all before it, so a resumed run must agree."""
        sampled = {sequence: Sampled(next_token(sequence.tokens), -1.0, None, None) for sequence in plan.sampled}
        scores: dict[Sequence, list[tuple[int, float, None]]] = {}
        for chunk in plan.chunks:
            assert chunk.start == chunk.sequence.num_computed
            assert len(chunk.sequence.pages) * self.scheduler.cache.page_size >= chunk.start + chunk.length
            scores[chunk.sequence] = [(chunk.start + row + 1, -2.0, None) for row in chunk.scored_rows]
        self.scheduler.commit(plan, sampled, scores)
        self.scheduler.check_integrity()

    def step(self) -> Plan:
        plan = self.scheduler.schedule()
        self.scheduler.check_integrity()
        self.commit(plan)
        return plan

    def run(self) -> None:
        while self.scheduler.has_work:
            assert self.step().chunks, "there is work, so a step must do some"


def next_token(tokens: list[int]) -> int:
    return sum((index + 1) * token for index, token in enumerate(tokens)) % 256


def expected(prompt: list[int], number: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(number):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("seed", range(10))
def test_random_traffic_under_pressure(seed: int) -> None:
    rng = random.Random(seed)
    bench = Bench(num_pages=14, max_sequences=6)
    wanted: dict[Sequence, list[int]] = {}
    cancelled: set[Sequence] = set()
    failed: set[Sequence] = set()
    for _ in range(250):
        action = rng.random()
        if action < 0.35:
            prompt = [1, 2, 3, 4, 5, 6][: rng.randint(1, 6)] + [rng.randrange(9, 12) for _ in range(rng.randint(1, 12))]
            number = rng.randint(1, 20)
            wanted[bench.add(prompt, max_tokens=number, priority=rng.choice([0, 0, 1]))] = expected(prompt, number)
        elif action < 0.4:
            live = [sequence for sequence in wanted if sequence.state is not State.FINISHED]
            if live:
                bench.scheduler.cancel(rng.choice(live))
        else:
            plan = bench.scheduler.schedule()
            bench.scheduler.check_integrity()
            if plan.chunks and rng.random() < 0.03:
                failed |= {chunk.sequence for chunk in plan.chunks}
                bench.scheduler.fail([chunk.sequence for chunk in plan.chunks], EngineError("planted"))
            else:
                bench.commit(plan)
    bench.run()
    counters = bench.scheduler.counters
    for sequence, tokens in wanted.items():
        last = bench.received[sequence][-1]
        if isinstance(last, EngineError):
            failed.discard(sequence)
        elif last.finish_reason == "cancelled":
            cancelled.add(sequence)
        else:
            assert last.result.token_ids == tokens
            assert sum(len(delta.token_ids) for delta in bench.received[sequence]) == len(tokens)
    assert not failed and cancelled and counters["pauses"] > 0 and counters["cached_tokens"] > 0
    pages = bench.scheduler.cache.counts()
    assert pages["free"] + pages["evictable"] == pages["total"]


def test_decoding_rows_come_before_a_long_prefill() -> None:
    bench = Bench(num_pages=60)
    first = bench.add([1, 2, 3], max_tokens=10)
    bench.step()
    bench.add(list(range(100)))
    for _ in range(4):
        plan = bench.step()
        assert [(chunk.sequence is first, chunk.length) for chunk in plan.chunks] == [(True, 1), (False, 15)]


def test_a_common_prefix_is_computed_once() -> None:
    bench = Bench(num_pages=60, max_batch_tokens=40)
    common = list(range(24))
    for tail in range(6):
        bench.add([*common, 100 + tail, 7])
    bench.run()
    assert bench.scheduler.counters["cached_tokens"] == 5 * 24
    assert bench.scheduler.counters["prompt_tokens"] == 6 * 26


def test_two_copies_of_a_page_become_one() -> None:
    """Both decode the same tokens, so each fills a page of its own; the second one is given back."""
    bench = Bench(num_pages=20)
    bench.add([1, 2], max_tokens=9)
    bench.add([1, 2], max_tokens=9)
    while bench.scheduler.has_work:
        bench.step()
        first_pages = [sequence.pages[: sequence.num_shared_pages] for sequence in bench.received]
    assert first_pages == [[], []]
    assert bench.scheduler.cache.counts()["evictable"] == 3


def test_priority_runs_first_and_is_paused_last() -> None:
    bench = Bench(num_pages=8, max_sequences=2)
    low = bench.add([1] * 10, max_tokens=8)
    other = bench.add([2] * 10, max_tokens=8)
    high = bench.add([3] * 10, max_tokens=8, priority=1)
    bench.run()
    ends = [bench.received[sequence][-1] for sequence in (low, other, high)]
    assert all(isinstance(end, Delta) and end.finish_reason == "length" for end in ends)
    assert high.request.priority == 1 and bench.scheduler.counters["pauses"] > 0


def test_cancelling_works_while_waiting_and_in_the_middle_of_a_prefill() -> None:
    bench = Bench(num_pages=60, max_sequences=1)
    prefilling, waiting = bench.add(list(range(100))), bench.add([1, 2])
    bench.step()
    assert prefilling.num_computed == 16
    for sequence in (prefilling, waiting):
        bench.scheduler.cancel(sequence)
    assert not bench.scheduler.schedule().chunks and not bench.scheduler.has_work
    assert bench.scheduler.cache.counts()["protected"] == 0
    assert [bench.received[sequence][-1].finish_reason for sequence in (prefilling, waiting)] == ["cancelled"] * 2


@pytest.mark.parametrize("score_from", [0, 1, 5, 19])
@pytest.mark.parametrize("warm", [False, True])
def test_scoring_computes_just_the_rows_that_score(score_from: int, warm: bool) -> None:
    bench = Bench(num_pages=60)
    prompt = list(range(20))
    if warm:
        bench.add(prompt)
        bench.run()
    before = bench.scheduler.counters["computed_tokens"]
    sequence = bench.add(prompt, score_from=score_from)
    bench.run()
    result = bench.received[sequence][-1].result
    assert result.token_ids == prompt[score_from:]
    assert len(result.logprobs) == 20 - max(score_from, 1)
    assert bench.scheduler.counters["computed_tokens"] - before == (19 - max(score_from - 1, 0) if warm else 19)
