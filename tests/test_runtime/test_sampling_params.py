"""Each option is checked where it is written down, and the error names it and its value."""

import copy
import dataclasses
import math
import pickle
from typing import Any

import numpy as np
import pytest

from drawloom.errors import RequestError
from drawloom.runtime.sampling_params import SamplingParams, check_against_vocabulary

DEFAULTS: dict[str, Any] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "logit_bias": {},
    "seed": None,
    "max_tokens": 256,
    "min_tokens": 0,
    "stop": (),
    "stop_token_ids": (),
    "ignore_eos": False,
    "n": 1,
    "logprobs": True,
    "top_logprobs": 0,
    "prompt_logprobs": False,
}

REFUSED: list[tuple[str, Any]] = [
    *(("temperature", bad) for bad in (math.nan, math.inf, -math.inf, -0.1, 1e-7, 1e7, "1", None, True, 10**400)),
    *(("top_p", bad) for bad in (0, 0.0, -0.5, 1.0001, math.nan, True, "0.9", None, 1j)),
    *(("top_k", bad) for bad in (-1, -5, 9_999_999, 1.5, 50.0, True, "50", None, math.nan)),
    *(("min_p", bad) for bad in (-0.01, 1.01, math.nan, math.inf, False, "0")),
    *(("presence_penalty", bad) for bad in (math.nan, math.inf, 2.5, -2.5, True, "0")),
    *(("frequency_penalty", bad) for bad in (math.nan, -math.inf, 2.5, -2.5, False, None)),
    *(("repetition_penalty", bad) for bad in (0, -1.0, math.nan, math.inf, 1e300, 1e-300, True)),
    *(("seed", bad) for bad in (-1, 2**63, 2**100, 1.0, "7", True)),
    *(("max_tokens", bad) for bad in (0, -1, 2**62, 1.5, math.inf, None, True)),
    *(("min_tokens", bad) for bad in (-1, 257, 0.5, True, None)),
    *(("n", bad) for bad in (0, -1, 2**62, 1.0, "2", True, None)),
    *(("top_logprobs", bad) for bad in (-1, 1_000_000, 5.0, True, None)),
    *(("stop", bad) for bad in ("", ("a", ""), ["a", 3], None, 5, b"a", {"a": 1}, (b"a",))),
    *(("stop_token_ids", bad) for bad in ((-1,), (True,), ("a",), "12", 5, None, (1.0,), (2**40,), {1: 2})),
    *(("ignore_eos", bad) for bad in (1, 0, None, "yes")),
    *(("logprobs", bad) for bad in (1, 0, None, "yes", 5)),
    *(("prompt_logprobs", bad) for bad in (1, None, "no")),
    *(("logit_bias", bad) for bad in ([], None, 3, [(1, 2.0)], {-1: 1.0}, {"5": 1.0}, {1.0: 1.0}, {True: 1.0})),
    *(("logit_bias", {5: bad}) for bad in (math.nan, math.inf, -math.inf, 1e31, True, "1", None)),
]


def test_the_fields_and_their_defaults() -> None:
    params = SamplingParams()
    assert {field.name: getattr(params, field.name) for field in dataclasses.fields(params)} == DEFAULTS


@pytest.mark.parametrize(("field", "value"), REFUSED, ids=lambda value: repr(value)[:40])
def test_a_bad_value_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{field: value})
    assert caught.value.field == field
    given = value
    if isinstance(value, dict) and field == "logit_bias":
        given = {*value, *value.values()}
    elif isinstance(value, tuple | list) and field in ("stop", "stop_token_ids"):
        given = {*value}
    if isinstance(given, set):
        assert any(caught.value.value is one for one in given), "the value names the item at fault"
    else:
        assert caught.value.value is value or caught.value.value == value
    assert field in str(caught.value)


def test_every_field_has_a_refused_value() -> None:
    assert {field for field, _ in REFUSED} == set(DEFAULTS)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0),
        ("temperature", 1e-6),
        ("temperature", np.float32(0.5)),
        ("top_p", 1e-9),
        ("top_k", np.int64(7)),
        ("top_k", 2**20),
        ("min_p", 1),
        ("presence_penalty", -2),
        ("repetition_penalty", 100),
        ("seed", 0),
        ("seed", 2**63 - 1),
        ("max_tokens", 1),
        ("n", 1024),
        ("top_logprobs", 1000),
        ("logprobs", False),
        ("logprobs", "model"),
    ],
    ids=repr,
)
def test_a_value_at_the_edge_is_taken(field: str, value: Any) -> None:
    params = SamplingParams(**{field: value})
    assert getattr(params, field) == value
    assert type(getattr(params, field)) in (float, int, bool, str), "numbers of other libraries become Python's"


def test_fields_that_contradict_each_other() -> None:
    with pytest.raises(RequestError, match="max_tokens=3") as caught:
        SamplingParams(max_tokens=3, min_tokens=4)
    assert caught.value.field == "min_tokens"
    assert SamplingParams(max_tokens=3, min_tokens=3).min_tokens == 3
    with pytest.raises(RequestError, match="needs logprobs"):
        SamplingParams(logprobs=False, top_logprobs=2)
    assert SamplingParams(logprobs=False, prompt_logprobs=True, top_logprobs=2).top_logprobs == 2


def test_stops_become_a_tuple_without_repetitions() -> None:
    assert SamplingParams(stop="\n").stop == ("\n",)
    assert SamplingParams(stop=["b", "a", "b"]).stop == ("b", "a")  # type: ignore[arg-type]
    assert SamplingParams(stop=(one for one in "xy")).stop == ("x", "y")  # type: ignore[arg-type]
    assert SamplingParams(stop_token_ids=[5, np.int32(2), 5]).stop_token_ids == (5, 2)  # type: ignore[arg-type]


def test_params_are_frozen_hashable_and_replaceable() -> None:
    bias = {7: 1, 3: -2.5}
    params = SamplingParams(logit_bias=bias, stop="x")
    bias[9] = 5
    assert params.logit_bias == {3: -2.5, 7: 1.0} and params.logit_bias[3] == -2.5
    same = SamplingParams(logit_bias={3: -2.5, 7: 1}, stop=["x"])  # type: ignore[arg-type]
    assert params == same and hash(params) == hash(same) and len({params, same}) == 1
    assert params != SamplingParams(logit_bias={3: -2.5}, stop="x")
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.temperature = 0.0  # type: ignore[misc]
    with pytest.raises(TypeError):
        params.logit_bias[3] = 0.0  # type: ignore[index]
    greedy = dataclasses.replace(params, temperature=0)
    assert greedy.temperature == 0.0 and greedy.logit_bias == params.logit_bias and greedy != params
    with pytest.raises(RequestError):
        dataclasses.replace(params, top_p=2.0)
    assert pickle.loads(pickle.dumps(params)) == params and copy.deepcopy(params) == params


@pytest.mark.parametrize("field", ["logit_bias", "stop_token_ids"])
def test_ids_beyond_the_vocabulary_are_found_at_admission(field: str) -> None:
    given: Any = {99: 1.0, 3: 0.0} if field == "logit_bias" else (3, 99)
    params = SamplingParams(**{field: given})
    check_against_vocabulary(params, 100)
    with pytest.raises(RequestError, match="outside the 99 ids") as caught:
        check_against_vocabulary(params, 99)
    assert caught.value.field == field and caught.value.value == 99


def test_top_k_beyond_the_vocabulary_is_no_mistake() -> None:
    check_against_vocabulary(SamplingParams(top_k=5000), 100)
