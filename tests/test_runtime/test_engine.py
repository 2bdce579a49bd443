"""The engine from outside: results, streams, cancellation, limits, faults, and the account of pages."""

import asyncio
import json
import math
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drawloom import (
    Delta,
    DrawloomError,
    Engine,
    EngineError,
    JSONSchema,
    PromptTooLong,
    Regex,
    RequestError,
    Result,
    SamplingParams,
)

MakeEngine = Callable[..., Engine]
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
# The first 94 ids of the test vocabulary are the printable ASCII characters.
PRINTABLE = replace(GREEDY, logit_bias=dict.fromkeys(range(94), 50.0))


def collect(engine: Engine, prompt: Any, **options: Any) -> list[Delta]:
    async def run() -> list[Delta]:
        return [delta async for delta in engine.stream(prompt, **options)]

    return asyncio.run(run())


def test_a_stream_adds_up_to_the_result(tiny_engine: MakeEngine) -> None:
    engine = tiny_engine()
    sampling = replace(PRINTABLE, temperature=1.0, seed=3, max_tokens=40, stop=("Qx", "~"))
    deltas = collect(engine, "hello", sampling=sampling)
    whole = engine.generate("hello", sampling)
    assert "".join(delta.text for delta in deltas) == whole.text
    assert [token for delta in deltas for token in delta.token_ids] == whole.token_ids
    assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert deltas[-1].result is not None and deltas[-1].result.logprobs == whole.logprobs
    assert len(whole.logprobs) == len(whole.token_ids)


def test_a_stop_string_is_cut_from_the_text_and_its_tokens_are_kept(tiny_engine: MakeEngine) -> None:
    engine = tiny_engine()
    free = engine.generate("hello", PRINTABLE)
    assert len(free.text) == 12
    stop = free.text[3:5]
    cut = engine.generate("hello", replace(PRINTABLE, stop=stop))
    assert cut.text == free.text[: free.text.index(stop)]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", stop)
    assert cut.token_ids == free.token_ids[: len(cut.token_ids)]
    assert stop in engine.tokenizer.decode(cut.token_ids)


def test_stop_ids_and_max_tokens(tiny_engine: MakeEngine) -> None:
    engine = tiny_engine()
    free = engine.generate("hello", GREEDY)
    assert (free.finish_reason, free.stop_reason, len(free.token_ids)) == ("length", None, 12)
    target = free.token_ids[5]
    first = free.token_ids.index(target)
    cut = engine.generate("hello", replace(GREEDY, stop_token_ids=(target,)))
    assert cut.token_ids == free.token_ids[: first + 1]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", target)


def test_samples_share_the_prompt_and_the_first_equals_n_1(tiny_engine: MakeEngine) -> None:
    engine = tiny_engine()
    prompt = list(range(200))
    one = engine.generate(prompt, SamplingParams(seed=5, max_tokens=8))
    engine.flush_cache()
    before = engine.metrics()["computed_tokens"]
    many: Any = engine.generate(prompt, SamplingParams(seed=5, max_tokens=8, n=4))
    assert many[0].token_ids == one.token_ids and many[0].seed == 5
    assert len({result.seed for result in many}) == 4 == len({tuple(result.token_ids) for result in many})
    assert engine.metrics()["computed_tokens"] - before < 2 * 200
    again: Any = engine.generate(prompt, SamplingParams(seed=many[2].seed, max_tokens=8))
    assert again.token_ids == many[2].token_ids


def test_a_drawn_seed_replays(tiny_engine: MakeEngine) -> None:
    engine = tiny_engine()
    first = engine.generate("a", SamplingParams(max_tokens=8))
    again = engine.generate("a", SamplingParams(max_tokens=8, seed=first.seed))
    assert again.token_ids == first.token_ids and again.logprobs == first.logprobs
    assert engine.generate("a", SamplingParams(max_tokens=8)).seed != first.seed


def test_generated_tokens_are_cached_for_the_next_turn(tiny_engine: MakeEngine) -> None:
    """D24: 100 prompt ids and 50 generated; the next turn finds all of them but the last, which never ran."""
    engine = tiny_engine()
    first = engine.generate(list(range(100)), SamplingParams(temperature=0.0, max_tokens=50, ignore_eos=True))
    turn = list(range(100)) + first.token_ids + list(range(50))
    assert len(turn) == 200
    second = engine.generate(turn, GREEDY)
    assert second.cached_tokens == 149
    assert engine.metrics()["cached_tokens"] == 149


def test_pages_are_accounted_for_at_idle(tiny_engine: MakeEngine) -> None:
    """D23: page size 4, prompts that share beginnings, finished in each order, one aborted."""
    engine = tiny_engine(page_size=4)
    prompts = [list(range(1, 11)), [1, 2, 3, 4, 5, 6, 20, 21, 22, 23], [*range(1, 11), 30]]
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        lengths = {index: 3 + 4 * place for place, index in enumerate(order)}
        engine.generate(prompts, [SamplingParams(max_tokens=lengths[index], seed=1) for index in range(3)])
        engine._loop.scheduler.check_integrity()
    received: list[Any] = []
    ended = threading.Event()

    def on_delta(delta: Delta | DrawloomError) -> None:
        received.append(delta)
        if isinstance(delta, DrawloomError) or delta.finish_reason:
            ended.set()

    handle = engine.submit(prompts[0], SamplingParams(max_tokens=500, ignore_eos=True), on_delta=on_delta)
    handle.cancel()
    assert ended.wait(30)
    assert received[-1].finish_reason == "cancelled" and engine.metrics()["cancelled"] == 1
    pages = engine.metrics()
    assert pages["pages.free"] + pages["pages.evictable"] == pages["pages.total"]
    assert pages["pages.evictable"] > 0


def test_a_request_that_outgrows_the_pool_alone_ends_with_length(tiny_engine: MakeEngine) -> None:
    """D27: a pool of 256 slots, 200 prompt ids and 200 tokens wanted: cut, everything free, the next one served."""
    sizer = tiny_engine()
    engine = tiny_engine(kv_bytes=256 * sizer._loop._runner._model.cache_bytes_per_token)
    assert engine.metrics()["pages.total"] == 4
    result = engine.generate(list(range(200)), SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True))
    assert result.finish_reason == "length"
    assert len(result.token_ids) + 200 == 256
    assert engine.generate(list(range(100)), GREEDY).finish_reason == "length"
    with pytest.raises(PromptTooLong) as caught:
        engine.generate(list(range(256)), GREEDY)
    assert (caught.value.value, caught.value.limit) == (256, 255)


def test_prompts_at_the_edge_of_the_context(
    tiny_folder: Callable[[str], Path], tmp_path: Path, tiny_engine: MakeEngine
) -> None:
    """D36: a model of 512 positions. 510 and 511 prompt ids leave room for 2 and 1 tokens, 512 and 513 for none."""
    shutil.copytree(tiny_folder("deepseek"), tmp_path / "short")
    config = json.loads((tmp_path / "short" / "config.json").read_text())
    (tmp_path / "short" / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 512}))
    params = replace(GREEDY, max_tokens=8)
    with Engine(tmp_path / "short", dtype="float32", num_threads=1, kv_bytes=8 << 20, progress=False) as engine:
        for length in (510, 511):
            result = engine.generate([7] * length, params)
            assert (result.finish_reason, len(result.token_ids)) == ("length", 512 - length)
        for length in (512, 513):
            with pytest.raises(PromptTooLong) as caught:
                engine.generate([7] * length, params)
            assert (caught.value.value, caught.value.limit) == (length, 511)
    longer = tiny_engine().generate([7] * 510, params)
    assert (
        len(longer.token_ids) == 8 and longer.token_ids[:2] == tiny_engine().generate([7] * 510, params).token_ids[:2]
    )


def test_closing_a_stream_frees_its_pages(tiny_engine: MakeEngine) -> None:
    engine = tiny_engine()

    async def run() -> None:
        stream = engine.stream("hello", SamplingParams(max_tokens=1500, ignore_eos=True))
        for _ in range(3):
            await anext(stream)
        await stream.aclose()
        while engine.metrics()["running"]:
            await asyncio.sleep(0.01)

    asyncio.run(run())
    assert engine.metrics()["cancelled"] == 1 and engine.metrics()["generated_tokens"] < 1000


def test_cancelling_the_task_cancels_the_request(tiny_engine: MakeEngine) -> None:
    engine = tiny_engine()

    async def run() -> None:
        task = asyncio.create_task(engine.generate_async(["a", "b"], SamplingParams(max_tokens=1800, ignore_eos=True)))
        while engine.metrics()["generated_tokens"] < 4:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while engine.metrics()["running"]:
            await asyncio.sleep(0.01)

    asyncio.run(run())
    assert engine.metrics()["cancelled"] == 2
    assert asyncio.run(engine.generate_async("a", GREEDY)).token_ids == engine.generate("a", GREEDY).token_ids


def test_scores_equal_what_generation_reported(tiny_engine: MakeEngine) -> None:
    engine = tiny_engine()
    prompt = list(range(90))
    written = engine.generate(prompt, GREEDY)
    first, other = engine.score(prompt, [written.token_ids, [1, 2, 3]])
    assert first.logprobs == written.logprobs
    assert len(other.logprobs) == 3
    whole = engine.generate(prompt + written.token_ids, SamplingParams(max_tokens=1, prompt_logprobs=True, seed=0))
    assert whole.prompt_logprobs is not None and whole.prompt_logprobs[0] is None
    assert whole.prompt_logprobs[90:] == written.logprobs
    assert whole.cached_tokens == 0 and engine.metrics()["cached_tokens"] > 0


def test_a_json_result_is_valid(tiny_engine: MakeEngine) -> None:
    import json

    schema = {
        "type": "object",
        "properties": {
            "ok": {"type": "boolean"},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
        },
        "required": ["ok", "tags"],
        "additionalProperties": False,
    }
    results = tiny_engine().generate(
        [[1, 2, 3]] * 8, [SamplingParams(seed=seed, max_tokens=60) for seed in range(8)], JSONSchema(schema)
    )
    for result in results:
        assert result.finish_reason == "stop" and set(json.loads(result.text)) == {"ok", "tags"}
        assert result.text == json.dumps(json.loads(result.text))
        assert result.token_ids[-1] == result.stop_reason
    assert len({result.text for result in results}) > 1


def test_a_failing_matcher_ends_its_own_request_only(tiny_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    from drawloom.grammar import fill_bitmasks
    from drawloom.runtime import masks

    engine = tiny_engine()
    alone = engine.generate("free", GREEDY)
    calls = 0
    original = fill_bitmasks

    def broken(matchers: Any, bitmask: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise ZeroDivisionError("planted")
        return original(matchers, bitmask)

    monkeypatch.setattr(masks, "fill_bitmasks", broken)
    outcomes: dict[str, Delta | DrawloomError] = {}
    done = threading.Semaphore(0)

    def receiver(name: str) -> Callable[[Delta | DrawloomError], None]:
        def on_delta(delta: Delta | DrawloomError) -> None:
            if isinstance(delta, DrawloomError) or delta.finish_reason:
                outcomes[name] = delta
                done.release()

        return on_delta

    ids = engine.tokenizer.encode("free")
    engine.submit(ids, GREEDY, Regex("[a-z]{20}"), on_delta=receiver("bound"))
    engine.submit(ids, GREEDY, on_delta=receiver("free"))
    assert done.acquire(timeout=30) and done.acquire(timeout=30)
    assert isinstance(outcomes["bound"], EngineError) and "planted" in str(outcomes["bound"])
    free = outcomes["free"]
    assert isinstance(free, Delta) and free.result is not None and free.result.logprobs == alone.logprobs


def test_a_step_that_fails_ends_its_requests_and_the_engine_goes_on(
    tiny_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tiny_engine()
    want = engine.generate("a", GREEDY)
    runner = engine._loop._runner
    original = runner.forward

    def broken(plan: Any, inputs: Any) -> Any:
        raise MemoryError("planted")

    monkeypatch.setattr(runner, "forward", broken)
    with pytest.raises(EngineError, match="planted"):
        engine.generate("a", GREEDY)
    monkeypatch.setattr(runner, "forward", original)
    assert engine.generate("a", GREEDY).logprobs == want.logprobs


def test_a_receiver_that_raises_cancels_its_request(tiny_engine: MakeEngine, caplog: pytest.LogCaptureFixture) -> None:
    engine = tiny_engine()

    def on_delta(delta: Delta | DrawloomError) -> None:
        raise ValueError("planted")

    engine.submit([1, 2], SamplingParams(max_tokens=1000, ignore_eos=True), on_delta=on_delta)
    engine.generate("a", GREEDY)
    while engine.metrics()["running"]:
        threading.Event().wait(0.01)
    assert engine.metrics()["cancelled"] == 1 and caplog.text.count("ValueError: planted") == 1


@pytest.mark.parametrize(
    ("prompt", "options", "field"),
    [
        ("", {}, "prompt"),
        ([], {}, "prompt"),
        ([1, 99999], {}, "prompt[1]"),
        ([1, "a"], {}, "prompt[1]"),
        ([1, True], {}, "prompt[1]"),
        ([1.5], {}, "prompt[0]"),
        (["a", None], {}, "prompt[1]"),
        ([[1], [2, 10**6]], {}, "prompt[1][1]"),
        (b"abc", {}, "prompt"),
        ([b"abc"], {}, "prompt[0]"),
        ("a", {"sampling": {"temperature": 0}}, "sampling"),
        ("a", {"constraint": {"type": "object"}}, "constraint"),
        (["a", "b"], {"sampling": [SamplingParams()]}, "sampling"),
        ("a", {"sampling": SamplingParams(stop="x"), "constraint": Regex("a")}, "stop"),
        ("a", {"sampling": SamplingParams(stop_token_ids=(3,)), "constraint": Regex("a")}, "stop_token_ids"),
    ],
)
def test_what_cannot_run_is_refused_by_field(
    tiny_engine: MakeEngine, prompt: Any, options: dict[str, Any], field: str
) -> None:
    with pytest.raises(RequestError) as caught:
        tiny_engine().generate(prompt, **options)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "value"),
    [("top_logprobs", 1_000_000), ("top_k", 2**62), ("top_k", -5), ("n", 0), ("n", 2**62), ("temperature", math.nan)]
    + [("temperature", math.inf), ("top_p", 0.0), ("max_tokens", 0), ("seed", -1), ("logit_bias", {3: math.inf})],
)
def test_an_odd_field_ends_its_own_request_only(tiny_engine: MakeEngine, field: str, value: Any) -> None:
    """D35: refused by name, whatever else runs; the neighbour's result is that of a quiet engine."""
    engine = tiny_engine()
    alone = engine.generate("a plain request", GREEDY)
    running: list[Delta | DrawloomError] = []
    done = threading.Event()

    def on_delta(delta: Delta | DrawloomError) -> None:
        running.append(delta)
        if isinstance(delta, DrawloomError) or delta.result is not None:
            done.set()

    engine.submit(engine.tokenizer.encode("a plain request"), GREEDY, on_delta=on_delta)
    with pytest.raises(RequestError) as caught:
        engine.generate("a", SamplingParams(**{field: value}))
    assert caught.value.field.startswith(field)
    assert done.wait(60)
    last = running[-1]
    assert isinstance(last, Delta) and last.result is not None and last.result.token_ids == alone.token_ids


@pytest.mark.parametrize(
    ("option", "value"),
    [("page_size", 48), ("dtype", "int8"), ("num_threads", 0), ("kv_bytes", 10), ("max_sequences", True)]
    + [("num_threads", 10**6), ("kv_bytes", 10**15), ("model", 5)]
    + [("speculation", "ngram"), ("device", "cuda"), ("model", "/no/such/folder"), ("max_batch_tokens", 3)],
)
def test_an_engine_option_out_of_range_is_refused(tiny_engine: MakeEngine, option: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        if option == "model":
            Engine(value)
        else:
            tiny_engine(**{option: value})
    assert caught.value.field == option


@pytest.mark.parametrize(
    ("prefix", "endings", "field"),
    [
        ("a", "xyz", "endings"),
        ("a", None, "endings"),
        ("a", ["b", []], "endings[1]"),
        ("a", [None], "endings[0]"),
        ("a", [[3, 10**6]], "endings[0][1]"),
        (None, ["a"], "prefix"),
    ],
)
def test_what_cannot_be_scored_is_refused_by_field(
    tiny_engine: MakeEngine, prefix: Any, endings: Any, field: str
) -> None:
    with pytest.raises(RequestError) as caught:
        tiny_engine().score(prefix, endings)
    assert caught.value.field == field


def test_the_limit_cuts_only_what_could_have_gone_on(tiny_engine: MakeEngine) -> None:
    engine = tiny_engine()
    whole = engine.generate("a", GREEDY, Regex("[a-z]{5}"))
    assert whole.finish_reason == "stop" and len(whole.text) == 5
    tokens = len(whole.token_ids) - 1  # without EOS
    exact = engine.generate("a", replace(GREEDY, max_tokens=tokens), Regex("[a-z]{5}"))
    assert (exact.finish_reason, exact.token_ids, exact.text) == ("stop", whole.token_ids[:-1], whole.text)
    assert engine.generate("a", replace(GREEDY, max_tokens=tokens - 1), Regex("[a-z]{5}")).finish_reason == "length"
    assert engine.generate("a", replace(GREEDY, max_tokens=1), JSONSchema({"enum": [1, 12]})).finish_reason == "length"


def test_the_engines_own_thread_may_not_wait_for_itself(tiny_engine: MakeEngine) -> None:
    engine = tiny_engine()
    refused: list[DrawloomError] = []
    done = threading.Event()

    def on_delta(delta: Delta | DrawloomError) -> None:
        calls: list[Callable[[], object]] = [
            engine.flush_cache,
            lambda: engine.generate("a", GREEDY),
            lambda: engine.score("a", ["b"]),
        ]
        for call in calls:
            try:
                call()
            except EngineError as error:
                refused.append(error)
        done.set()

    engine.submit([5], replace(GREEDY, max_tokens=1), on_delta=on_delta)
    assert done.wait(30) and len(refused) == 3
    assert engine.generate("a", GREEDY).finish_reason == "length"


@pytest.mark.filterwarnings("ignore:This process")  # Python warns of forks beside threads, which is what this is about
def test_an_engine_says_that_it_did_not_survive_a_fork(tiny_engine: MakeEngine) -> None:
    engine = tiny_engine()
    engine.generate("a", GREEDY)
    child = os.fork()
    if child == 0:
        refused = 0
        for call in (engine.flush_cache, lambda: engine.submit([1], GREEDY, on_delta=print)):
            try:
                call()
            except EngineError:
                refused += 1
        engine.close()
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    assert engine.generate("a", GREEDY).finish_reason == "length"


def test_a_closed_engine_refuses_and_ends_what_ran(tiny_engine: MakeEngine) -> None:
    engine = tiny_engine()
    results: list[Result] = []
    worker = threading.Thread(
        target=lambda: results.append(engine.generate("a", SamplingParams(max_tokens=1500, ignore_eos=True)))
    )
    worker.start()
    while not engine.metrics()["running"]:
        threading.Event().wait(0.01)
    engine.close()
    worker.join(30)
    assert results and results[0].finish_reason == "cancelled"
    with pytest.raises(EngineError, match="closed"):
        engine.generate("a", GREEDY)
    engine.close()


def test_many_threads_at_once(tiny_engine: MakeEngine) -> None:
    engine = tiny_engine()
    want = engine.generate(list(range(40)), GREEDY)
    found: list[Result] = []
    threads = [
        threading.Thread(target=lambda: found.append(engine.generate(list(range(40)), GREEDY))) for _ in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 12 and all(result.logprobs == want.logprobs for result in found)


def test_an_unconstrained_neighbour_of_a_grammar_sees_no_mask(tiny_engine: MakeEngine) -> None:
    engine = tiny_engine()
    alone = engine.generate("x", GREEDY)
    free, bound = engine.generate(["x", "x"], GREEDY, [None, Regex("[0-9]{6}")])
    assert free.logprobs == alone.logprobs and free.text == alone.text
    assert bound.text.isdigit() and len(bound.text) == 6
