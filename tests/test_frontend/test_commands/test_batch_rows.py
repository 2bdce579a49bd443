"""What a row may say, what comes of it, and which mistakes become error rows that stop nothing."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from drawloom.runtime.seeds import derive_seed

Batch = Callable[..., tuple[int, str, list[dict[str, Any]]]]
GOOD = {"prompt": "hello", "max_tokens": 3}


def test_a_row_overrides_the_options(batch: Batch) -> None:
    rows = [
        {"id": "a", "prompt": "one", "max_tokens": 3, "ignore_eos": True},
        {"id": 2.5, "messages": [{"role": "system", "content": "x"}, {"role": "user", "content": "y"}]},
        {"prompt": "one", "regex": "[0-9]{4}", "seed": 12, "id": None},
        {"prompt": "one", "schema": {"type": "boolean"}},
        {"prompt": "one", "ebnf": 'start: "a" | "b"', "logprobs": True},
        {"prompt": "one", "logit_bias": {"5": 100}, "temperature": 0, "max_tokens": 2},
        {"prompt": "one", "stop": ["q"], "choices": None},
    ]
    status, err, entries = batch(rows, "--choice", "yes", "--choice", "no", "--seed", 4, "--max-tokens", 9)
    assert status == 0, err
    assert [entry["index"] for entry in entries] == list(range(7))
    assert [entry.get("id") for entry in entries[:4]] == ["a", 2.5, None, None]
    assert entries[0]["text"] in ("yes", "no") and entries[1]["text"] in ("yes", "no")
    assert len(entries[2]["text"]) == 4 and entries[2]["text"].isdecimal() and entries[2]["seed"] == 12
    assert entries[3]["text"] in ("true", "false") and entries[4]["text"] in ("a", "b")
    assert len(entries[4]["token_ids"]) == len(entries[4]["logprobs"]) == entries[4]["tokens"]
    assert entries[6]["error"]["field"] == "stop"  # beside the constraint of the command
    assert entries[0]["seed"] == derive_seed(4, ("row", 0))
    assert set(entries[3]) == {"index", "text", "finish_reason", "stop_reason", "seed", "prompt_tokens", "tokens"}


@pytest.mark.parametrize(
    ("row", "kind", "field", "said"),
    [
        (b"{not json}\n", "RequestError", "row", "not json"),
        (b'{"prompt": "a", "prompt": "b"}\n', "RequestError", "row", "twice"),
        (b'{"prompt": "a", "top_p": NaN}\n', "RequestError", "row", "NaN"),
        (b'{"prompt": "\xff"}\n', "RequestError", "row", "utf-8"),
        (b"[" * 100_000 + b"\n", "RequestError", "row", "JSON"),
        (b'["prompt"]\n', "RequestError", "row", "object"),
        ({"prompt": "a", "temprature": 0.5}, "RequestError", "temprature", "0.5"),
        ({"prompt": "a", "temperature": "hot"}, "RequestError", "temperature", "hot"),
        ({"prompt": "a", "n": 2}, "RequestError", "n", "2"),
        ({"prompt": "a", "messages": []}, "RequestError", "prompt", "either"),
        ({"id": "x"}, "RequestError", "prompt", "either"),
        ({"prompt": 7}, "RequestError", "prompt", "7"),
        ({"prompt": "a\ud800"}, "RequestError", "prompt", "surrogate"),
        ({"messages": [{"role": "user"}]}, "RequestError", "messages[0]", "content"),
        ({"messages": [{"role": "user", "content": "a", "nmae": 1}]}, "RequestError", "messages[0]", "nmae"),
        ({"messages": "hi"}, "RequestError", "messages", "hi"),
        ({"prompt": "a", "id": ["x"]}, "RequestError", "id", "x"),
        ({"prompt": "a", "regex": "a", "choices": ["b"]}, "RequestError", "choices", "regex"),
        ({"prompt": "a", "schema": {"type": "nothing"}}, "InvalidConstraint", "schema", "nothing"),
        ({"prompt": "a", "regex": "(?=a)"}, "UnsupportedConstraint", "regex", ""),
        ({"prompt": "a", "regex": 7}, "InvalidConstraint", "regex", ""),
        ({"prompt": "a", "choices": "yes"}, "InvalidConstraint", "choices", "yes"),
        ({"prompt": "a", "schema": '{"type": "null"}'}, "RequestError", "schema", "object"),
        ({"prompt": "a" * 2000}, "PromptTooLong", "prompt", "2"),
        ({"prompt": "a", "logit_bias": {"five": 1}}, "RequestError", "logit_bias", "five"),
        ({"prompt": "a", "logit_bias": {"99999": 1}}, "RequestError", "logit_bias", "99999"),
        ({"prompt": "a", "seed": -1}, "RequestError", "seed", "-1"),
        ({"prompt": "a", "half \ud800": 1}, "RequestError", "half \ud800", "1"),
    ],
)
def test_a_mistake_is_named_and_stops_nothing(row: Any, kind: str, field: str, said: str, batch: Batch) -> None:
    status, err, entries = batch([GOOD, row, GOOD | {"id": "after"}], "--seed", 1)
    assert status == 0 and "errors=1" in err
    assert "text" in entries[0] and entries[2]["id"] == "after" and "text" in entries[2]
    error = entries[1]["error"]
    assert (error["kind"], error["field"]) == (kind, field) and said in error["message"]
    assert set(entries[1]) <= {"index", "id", "error"}


def test_blank_lines_are_no_rows(batch: Batch) -> None:
    status, err, entries = batch([b"\n", GOOD, b"  \n", GOOD, b"\n", json.dumps(GOOD).encode()], "--seed", 1)
    assert status == 0 and [entry["index"] for entry in entries] == [0, 1, 2]
    assert "rows=3/3" in err
    assert len({entry["seed"] for entry in entries}) == 3


def test_a_cut_text_says_that_it_is_not_whole(batch: Batch) -> None:
    cut_short = {"prompt": "a", "regex": "[a-z]{30}", "max_tokens": 5}
    _, err, entries = batch([cut_short, {"prompt": "a", "max_tokens": 5, "ignore_eos": True}], "--seed", 1)
    cut, free = entries
    assert free["finish_reason"] == cut["finish_reason"] == "length"
    assert len(cut["text"]) < 30 and "error" not in free
    assert cut["error"]["field"] == "max_tokens" and "errors=1" in err


def test_rows_do_not_depend_on_how_many_fly(batch: Batch) -> None:
    rows = [{"prompt": f"{row}" * (row % 7 + 1), "max_tokens": 1 + row * 5 % 17} for row in range(24)]
    outputs = []
    for at_most in (1, 3, 256):
        status, _, entries = batch(rows, "--seed", 2, "--in-flight", at_most, "--overwrite")
        assert status == 0
        outputs.append(entries)
    assert outputs[0] == outputs[1] == outputs[2]
    assert len({entry["text"] for entry in outputs[0]}) > 15


def test_a_constraint_that_cannot_be_had_is_one_error(batch: Batch) -> None:
    status, err, entries = batch([GOOD], "--regex", "(?=a)")
    assert status == 2 and entries == [] and len(err.splitlines()) == 1 and "constraint: position 0: 'look" in err


def test_a_fault_of_the_engine_costs_no_other_row(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step that holds the second row fails, and with it the rows beside it, which are run again."""
    from drawloom.runtime.model_runner import ModelRunner

    rows = [GOOD, {"prompt": "a boom", "max_tokens": 3}, {"prompt": "others", "max_tokens": 3}]
    _, _, want = batch(rows, "--seed", 1)
    original, num_failed = ModelRunner.forward, 0

    def planted(self: ModelRunner, plan: Any, inputs: Any) -> Any:
        nonlocal num_failed
        if any(chunk.sequence.request.seed == want[1]["seed"] for chunk in plan.chunks):
            num_failed += 1
            raise MemoryError("planted")
        return original(self, plan, inputs)

    monkeypatch.setattr(ModelRunner, "forward", planted)
    status, err, entries = batch(rows, "--seed", 1, "--overwrite")
    assert status == 0 and "errors=1" in err and num_failed == 2
    assert entries[0] == want[0] and entries[2] == want[2]
    assert entries[1]["error"]["kind"] == "EngineError" and "planted" in entries[1]["error"]["message"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_engine_that_stops_leaves_its_rows_for_the_next_run(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    from drawloom.runtime.scheduler import Scheduler

    rows = [GOOD | {"id": row} for row in range(6)]
    _, _, want = batch(rows, "--seed", 1)
    original = Scheduler.commit

    def planted(self: Scheduler, plan: Any, *others: Any) -> None:
        if any(chunk.sequence.request.seed == want[3]["seed"] for chunk in plan.chunks):
            raise ZeroDivisionError("planted")
        original(self, plan, *others)

    monkeypatch.setattr(Scheduler, "commit", planted)
    status, err, entries = batch(rows, "--seed", 1, "--overwrite", "--in-flight", 2)
    assert status == 1 and "the engine stopped" in err and "goes on from here" in err
    assert len(entries) < 4 and entries == want[: len(entries)]
    monkeypatch.setattr(Scheduler, "commit", original)
    assert batch(rows, "--seed", 1)[2] == want
