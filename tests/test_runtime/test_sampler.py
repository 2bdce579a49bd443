"""The sampler against a slow one that looks at whole rows, and the promise that a row's outcome is its own."""

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from drawloom.errors import EngineError
from drawloom.kernels.reference.philox import gumbel
from drawloom.runtime.gumbel_argmax import contenders
from drawloom.runtime.sampler import Sampled, Sampler, SamplingRow, token_logprobs
from drawloom.runtime.sampling_params import SamplingParams

Mask = NDArray[np.bool_]
Params = dict[str, Any]


@dataclass
class Case:
    """One row: its logits, what it is sampled with, and which ids its grammar allows (None: no grammar)."""

    logits: NDArray[np.float32]
    row: SamplingRow
    allowed: Mask | None = field(default=None)


def sampling_row(
    *,
    seed: int = 1,
    position: int = 0,
    prompt_ids: Any = (),
    output_ids: Any = (),
    eos_ids: Any = (),
    constrained: bool = False,
    **params: Any,
) -> SamplingRow:
    return SamplingRow(
        params=SamplingParams(**params),
        seed=seed,
        position=position,
        prompt_ids=prompt_ids,
        output_ids=output_ids,
        eos_ids=frozenset(eos_ids),
        constrained=constrained,
    )


def pack(masks: list[Mask | None], size: int) -> torch.Tensor:
    """A bitmask with stray bits beyond the vocabulary, which must not matter."""
    words = -(-size // 32)
    bits = np.ones((len(masks), words * 32), dtype=np.uint8)
    for row, mask in enumerate(masks):
        if mask is not None:
            bits[row, :size] = mask
    return torch.from_numpy(np.packbits(bits, axis=1, bitorder="little").view(np.int32))


def sample(cases: list[Case]) -> list[Sampled]:
    size = len(cases[0].logits)
    masked = any(case.allowed is not None for case in cases)
    bitmask = pack([case.allowed for case in cases], size) if masked else None
    logits = torch.from_numpy(np.stack([case.logits for case in cases]))
    before = logits.clone()
    sampled = Sampler().sample(logits, [case.row for case in cases], bitmask)
    assert torch.equal(logits.view(torch.int32), before.view(torch.int32)), "the logits are not the sampler's to change"
    return sampled


def oracle(case: Case) -> tuple[int, dict[int, float]]:
    """The token and all log-probabilities, by the definition, without any shortcut."""
    row, params = case.row, case.row.params
    logits = adjusted(case)
    logprobs = log_softmax(case.logits if params.logprobs == "model" else logits)
    ids = [token_id for token_id in range(len(logits)) if logits[token_id] > -np.inf]
    if params.temperature == 0:
        return min(ids, key=lambda v: (-logits[v], v)), logprobs
    scaled = logits / np.float32(params.temperature)
    ids.sort(key=lambda v: (-scaled[v], v))
    weights = {v: math.exp(np.float64(scaled[v]) - np.float64(scaled[ids[0]])) for v in ids}
    if params.top_k:
        ids = ids[: params.top_k]
    if params.top_p < 1:
        total, running, count = math.fsum(weights[v] for v in ids), 0.0, 0
        while running < params.top_p * total and count < len(ids):
            running += weights[ids[count]]
            count += 1
        ids = ids[:count]
    ids = [v for v in ids if weights[v] >= params.min_p]
    noise = gumbel(torch.tensor([row.seed]), torch.tensor([row.position]), torch.arange(len(logits))).numpy()
    return min(ids, key=lambda v: (-(scaled[v] + noise[v]), v)), logprobs


def adjusted(case: Case) -> NDArray[np.float32]:
    row, params = case.row, case.row.params
    logits = case.logits.copy()
    for token_id, bias in params.logit_bias.items():
        logits[token_id] += np.float32(bias)
    penalty = np.float32(params.repetition_penalty)
    for token_id in {*row.prompt_ids, *row.output_ids}:
        logits[token_id] = logits[token_id] / penalty if logits[token_id] > 0 else logits[token_id] * penalty
    for token_id, count in Counter(row.output_ids).items():
        logits[token_id] -= np.float32(params.presence_penalty + params.frequency_penalty * count)
    if case.allowed is not None:
        logits[~case.allowed] = -np.inf
    if len(row.output_ids) < params.min_tokens:
        ends = set(params.stop_token_ids)
        if row.constrained or not params.ignore_eos:
            ends |= row.eos_ids
        longer = logits.copy()
        longer[sorted(ends)] = -np.inf
        logits = longer if longer.max() > -np.inf else logits
    return logits


def log_softmax(logits: NDArray[np.float32]) -> dict[int, float]:
    exact = logits.astype(np.float64) - np.float64(logits.max())
    exact -= math.log(np.exp(exact).sum())
    return {token_id: float(logprob) for token_id, logprob in enumerate(exact) if logprob > -math.inf}


def random_params(random: np.random.Generator, size: int) -> Params:
    def sometimes(value: Any, default: Any, chance: float = 0.4) -> Any:
        return value if random.random() < chance else default

    some_ids = random.integers(0, size, 5).tolist()
    return {
        "temperature": random.choice([0, 0.3, 0.8, 1, 1, 2.5]),
        "top_k": sometimes(int(random.integers(1, size + 5)), 0, 0.3),
        "top_p": sometimes(float(random.choice([1e-9, 0.1, 0.5, 0.9, 0.99])), 1.0),
        "min_p": sometimes(float(random.choice([0.01, 0.1, 0.5, 1.0])), 0.0, 0.25),
        "presence_penalty": sometimes(float(random.uniform(-2, 2)), 0.0, 0.2),
        "frequency_penalty": sometimes(float(random.uniform(-2, 2)), 0.0, 0.2),
        "repetition_penalty": sometimes(float(random.uniform(0.5, 2)), 1.0, 0.2),
        "logit_bias": sometimes({v: float(random.normal() * 5) for v in some_ids[:3]}, {}, 0.2),
        "min_tokens": int(sometimes(4, 0)),
        "stop_token_ids": sometimes(tuple(some_ids[3:]), (), 0.3),
        "ignore_eos": bool(random.random() < 0.3),
        "logprobs": "model" if random.random() < 0.5 else True,
        "top_logprobs": int(random.choice([0, 3, 1000])),
    }


def random_case(random: np.random.Generator, size: int) -> Case:
    logits = (random.normal(size=size) * random.choice([0.0, 0.5, 3.0, 30.0])).astype(np.float32)
    if random.random() < 0.3:
        logits = np.round(logits)  # many ties
    if random.random() < 0.2:
        logits[random.random(size) < 0.5] = -np.inf
        logits[random.integers(0, size)] = 0.0
    allowed = None
    if random.random() < 0.6:
        allowed = random.random(size) < random.choice([0.0, 0.02, 0.3, 0.7, 0.98, 1.0])
        allowed[np.argmax(logits) if random.random() < 0.5 else random.choice(np.flatnonzero(logits > -np.inf))] = True
    params = random_params(random, size)
    row = sampling_row(
        seed=int(random.integers(0, 2**63)),
        position=int(random.integers(0, 10_000)),
        prompt_ids=random.integers(0, size, 6).tolist(),
        output_ids=random.integers(0, size, random.integers(0, 9)).tolist(),
        eos_ids=random.integers(0, size, 2).tolist(),
        constrained=allowed is not None,
        **params,
    )
    return Case(logits, row, allowed)


def assert_as_the_oracle_says(case: Case, sampled: Sampled) -> None:
    token_id, logprobs = oracle(case)
    assert sampled.error is None
    assert sampled.token_id == token_id
    assert math.isclose(sampled.logprob, logprobs[token_id], rel_tol=1e-5, abs_tol=1e-4)
    count = case.row.params.top_logprobs
    if not count:
        assert sampled.top_logprobs is None
        return
    assert sampled.top_logprobs is not None and len(sampled.top_logprobs) == min(count, len(logprobs))
    assert sampled.top_logprobs == sorted(sampled.top_logprobs, key=lambda one: (-one[1], one[0]))
    expected = sorted(logprobs.values(), reverse=True)[:count]
    for (one_id, logprob), best in zip(sampled.top_logprobs, expected, strict=True):
        assert math.isclose(logprob, best, rel_tol=1e-5, abs_tol=1e-4)
        assert math.isclose(logprob, logprobs[one_id], rel_tol=1e-5, abs_tol=1e-4)


@pytest.mark.parametrize(("size", "count"), [(1, 30), (5, 200), (37, 1500), (320, 300), (1026, 60)])
def test_small_rows_equal_the_oracle(size: int, count: int) -> None:
    random = np.random.default_rng(size)
    cases = [random_case(random, size) for _ in range(count)]
    for start in range(0, count, 30):
        batch = cases[start : start + 30]
        for case, sampled in zip(batch, sample(batch), strict=True):
            assert_as_the_oracle_says(case, sampled)


@pytest.mark.parametrize("size", [22_001, 40_000])
@pytest.mark.parametrize("spread", [0.0, 0.3, 2.0, 6.0])
@pytest.mark.parametrize("share", [None, 0.4, 0.6])
def test_large_rows_with_thousands_of_contenders_equal_the_oracle(
    size: int, spread: float, share: float | None
) -> None:
    random = np.random.default_rng(size + int(spread * 10))
    cases = []
    variants: list[Params] = [{}, {"temperature": 0.7}, {"top_p": 0.95}, {"top_p": 0.2}, {"top_k": 9000}, {}]
    for seed, params in enumerate(variants):
        logits = (random.normal(size=size) * spread).astype(np.float32)
        allowed = None if share is None else random.random(size) < share
        cases.append(Case(logits, sampling_row(seed=seed, **params), allowed))
    if spread < 2:
        assert all(contenders(case.logits, int(case.logits.argmax()), 8192) is None for case in cases)
    for case, sampled in zip(cases, sample(cases), strict=True):
        assert sampled.token_id == vectorised_oracle(case)


def vectorised_oracle(case: Case) -> int:
    """The token by the definition, for rows that are too long for plain Python; top_k, top_p and temperature only."""
    params, row = case.row.params, case.row
    scaled = np.where(case.allowed if case.allowed is not None else True, case.logits, np.float32(-np.inf))
    scaled = scaled.astype(np.float32) / np.float32(params.temperature)
    order = np.argsort(-scaled, kind="stable")[: params.top_k or None]
    running = np.cumsum(np.exp(scaled[order].astype(np.float64) - np.float64(scaled.max())))
    kept = np.sort(order[: int(np.searchsorted(running, params.top_p * running[-1])) + 1])
    noise = gumbel(torch.tensor([row.seed]), torch.tensor([row.position]), torch.from_numpy(kept)).numpy()
    return int(kept[np.argmax(scaled[kept] + noise)])


@pytest.mark.parametrize("size", [45, 320, 9001])
def test_a_row_alone_in_a_batch_and_in_any_order_gives_the_same_bits(size: int) -> None:
    random = np.random.default_rng(size)
    cases = [random_case(random, size) for _ in range(32)]
    cases[3] = Case(cases[3].logits, sampling_row(seed=5), None)
    cases[4] = Case(np.zeros(size, np.float32), sampling_row(seed=5), None)
    together = sample(cases)
    assert all(sampled.error is None for sampled in together)
    assert [sample([case])[0] for case in cases] == together
    for _ in range(3):
        order = random.permutation(32)
        assert sample([cases[index] for index in order]) == [together[index] for index in order]
    assert sample(cases[10:20]) == together[10:20]


def test_a_bitmask_that_allows_everything_changes_no_bit() -> None:
    random = np.random.default_rng(8)
    for size in (45, 320, 9001):
        cases = [random_case(random, size) for _ in range(20)]
        for case in cases:
            case.allowed = None
        plain = sample(cases)
        cases[0].allowed = np.zeros(size, np.bool_)
        cases[0].allowed[int(cases[0].logits.argmax())] = True
        assert sample(cases)[1:] == plain[1:]


def test_other_seeds_and_positions_give_other_tokens() -> None:
    logits = np.zeros(50, np.float32)
    by_seed = sample([Case(logits, sampling_row(seed=seed)) for seed in range(40)])
    by_position = sample([Case(logits, sampling_row(position=position)) for position in range(40)])
    assert len({sampled.token_id for sampled in by_seed}) > 15
    assert len({sampled.token_id for sampled in by_position}) > 15


@pytest.mark.parametrize(
    ("by", "params"),
    [
        ("seed", {}),
        ("position", {"temperature": 0.6}),
        ("seed", {"top_k": 6}),
        ("position", {"top_p": 0.8}),
        ("seed", {"min_p": 0.1}),
    ],
    ids=str,
)
def test_draws_follow_the_distribution(by: str, params: Params) -> None:
    """Chi-square over 20,000 draws; the bound is the 99.99 % quantile for as many degrees of freedom."""
    bounds = {5: 25.8, 6: 27.9, 7: 29.9, 8: 31.8, 9: 33.7, 10: 35.6, 11: 37.4, 12: 39.1, 13: 40.9, 14: 42.6, 15: 44.3}
    count = 20_000
    logits = np.linspace(2.0, -1.5, 16).astype(np.float32)
    kept = np.argsort(-logits, kind="stable")[: params.get("top_k")]
    weights = np.exp(logits[kept].astype(np.float64) / params.get("temperature", 1.0))
    weights /= weights.sum()
    if "top_p" in params:
        kept = kept[: int(np.searchsorted(np.cumsum(weights), params["top_p"])) + 1]
    if "min_p" in params:
        kept = kept[weights >= params["min_p"] * weights.max()]
    weights = weights[: len(kept)] / weights[: len(kept)].sum()
    row = sampling_row(seed=3, logprobs=False, **params)
    rows = [replace(row, seed=number) if by == "seed" else replace(row, position=number) for number in range(count)]
    drawn = Sampler().sample(torch.from_numpy(logits).expand(count, -1), rows)
    counts = np.bincount([sampled.token_id for sampled in drawn], minlength=16)
    assert counts[kept].sum() == count, "nothing outside the cuts is drawn"
    statistic = float(((counts[kept] - count * weights) ** 2 / (count * weights)).sum())
    assert 0.5 < statistic < bounds[len(kept) - 1]


def test_ties_go_to_the_smaller_id() -> None:
    logits = np.zeros(300, np.float32)
    logits[[250, 70, 71]] = 2.0
    logits[60] = -0.0
    (greedy,) = sample([Case(logits, sampling_row(temperature=0, top_logprobs=5))])
    assert greedy.token_id == 70
    assert [token_id for token_id, _ in greedy.top_logprobs or ()] == [70, 71, 250, 0, 1]
    cut = [sample([Case(logits, sampling_row(seed=seed, top_k=5))])[0].token_id for seed in range(200)]
    assert set(cut) == {70, 71, 250, 0, 1}
    flat = [Case(np.zeros(8, np.float32), sampling_row(seed=seed, top_p=0.5)) for seed in range(100)]
    assert {sampled.token_id for sampled in sample(flat)} == {0, 1, 2, 3}, "half of eight equal ones is four"


def test_equal_sums_go_to_the_smaller_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drawloom.runtime.gumbel_argmax.gumbel", lambda *args: torch.zeros(len(args[2])))
    logits = np.array([0, 5, 5, 5, 1], np.float32)
    variants: list[Params] = [{}, {"top_k": 4}, {"top_p": 0.9}, {"min_p": 0.5}]
    for params in variants:
        assert sample([Case(logits, sampling_row(**params))])[0].token_id == 1
        allowed = np.array([1, 0, 1, 1, 1], np.bool_)
        assert sample([Case(logits, sampling_row(**params), allowed)])[0].token_id == 2


def test_equal_sums_among_thousands_go_to_the_smaller_id(monkeypatch: pytest.MonkeyPatch) -> None:
    def equal_words(_seed: torch.Tensor, _position: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
        return torch.full((4, len(blocks)), 2**31, dtype=torch.uint32)

    monkeypatch.setattr("drawloom.runtime.gumbel_argmax.philox_blocks", equal_words)
    logits = np.zeros(20_002, np.float32)
    logits[:3] = -1.0
    assert sample([Case(logits, sampling_row())])[0].token_id == 3
    for share in (0.45, 0.9):
        allowed = np.random.default_rng(1).random(20_002) < share
        assert sample([Case(logits, sampling_row(), allowed)])[0].token_id == np.flatnonzero(allowed[3:])[0] + 3


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("size", [64, 5000])
def test_a_row_without_an_outcome_has_an_error_of_its_own(size: int, temperature: float) -> None:
    random = np.random.default_rng(6)
    cases = [
        Case(random.normal(size=size).astype(np.float32), sampling_row(seed=seed, temperature=temperature))
        for seed in range(7)
    ]
    good = sample(cases)
    cases[1].logits = np.full(size, -np.inf, np.float32)
    cases[2].logits[5] = np.nan
    cases[3].logits[6] = np.inf
    cases[4].allowed = np.zeros(size, np.bool_)
    cases[5].allowed = np.arange(size) == 9
    cases[5].logits[9] = -np.inf
    sampled = sample(cases)
    for index in (0, 6):
        assert sampled[index] == good[index]
    for index, message in {1: "no token is allowed", 2: "nan", 3: "inf", 4: "no token", 5: "no token"}.items():
        error = sampled[index].error
        assert isinstance(error, EngineError) and message in str(error)
        assert sampled[index].token_id == -1 and sampled[index].top_logprobs is None


def test_a_fault_in_one_row_stays_there() -> None:
    logits = np.zeros(10, np.float32)
    bad = sampling_row(presence_penalty=1.0, output_ids=[10])
    first, second = sample([Case(logits, bad), Case(logits, sampling_row())])
    assert isinstance(first.error, EngineError) and isinstance(first.error.__cause__, IndexError)
    assert second == sample([Case(logits, sampling_row())])[0] and second.error is None


def test_a_not_a_number_behind_the_bitmask_is_never_looked_at() -> None:
    for allowed_share in (0.1, 0.9):
        allowed = np.arange(100) < 100 * allowed_share
        logits = np.zeros(100, np.float32)
        expected = sample([Case(logits, sampling_row(), allowed)])
        logits = np.where(allowed, logits, np.float32(np.nan))
        assert sample([Case(logits, sampling_row(), allowed)]) == expected


def test_the_grammar_wins_over_bias_and_minimum_length() -> None:
    eos, other = 3, 7
    logits = np.zeros(40, np.float32)
    wish: Params = {"logit_bias": {other: 1e30, eos: -1e30}, "min_tokens": 5, "eos_ids": [eos]}

    def only(*ids: int) -> Mask:
        return np.isin(np.arange(40), ids)

    for temperature in (0.0, 1.0):
        row = sampling_row(temperature=temperature, **wish)
        assert sample([Case(logits, row, only(eos))])[0].token_id == eos
        assert sample([Case(logits, row, only(eos, 9))])[0].token_id == 9
        assert sample([Case(logits, row, ~only(other))])[0].token_id not in (eos, other)
        assert sample([Case(logits, row)])[0].token_id == other


def test_minimum_length_bars_eos_and_stop_ids_until_it_is_reached() -> None:
    logits = np.zeros(6, np.float32)
    logits[[1, 2, 4]] = [30.0, 20.0, 10.0]
    wish: Params = {"temperature": 0, "min_tokens": 3, "eos_ids": [1], "stop_token_ids": (2,)}
    assert sample([Case(logits, sampling_row(output_ids=[0, 0], **wish))])[0].token_id == 4
    assert sample([Case(logits, sampling_row(output_ids=[0, 0, 0], **wish))])[0].token_id == 1
    ignoring = sampling_row(output_ids=[0], ignore_eos=True, **wish)
    assert sample([Case(logits, ignoring)])[0].token_id == 1, "an EOS that ends nothing is a token like others"
    grammar = np.ones(6, np.bool_)
    grammar[0] = False
    assert sample([Case(logits, ignoring, grammar)])[0].token_id == 4, "under a grammar EOS ends the text all the same"
    allowing_all = sampling_row(output_ids=[0], ignore_eos=True, constrained=True, **wish)
    assert sample([Case(logits, allowing_all)])[0].token_id == 4


def test_penalties_look_at_the_right_ids() -> None:
    logits = np.array([4.0, 3.0, -1.0, 2.0], np.float32)
    row: Params = {"prompt_ids": [0, 2], "output_ids": [1, 1, 3], "temperature": 0, "top_logprobs": 4}

    def logits_of(**params: Any) -> list[float]:
        (sampled,) = sample([Case(logits, sampling_row(**row, **params))])
        top = dict(sampled.top_logprobs or ())
        return [top[token_id] - top[2] for token_id in range(4)]

    assert logits_of() == pytest.approx([5, 4, 0, 3], abs=1e-5)
    assert logits_of(repetition_penalty=2.0) == pytest.approx([4, 3.5, 0, 3], abs=1e-5)
    assert logits_of(presence_penalty=1.5) == pytest.approx([5, 2.5, 0, 1.5], abs=1e-5)
    assert logits_of(frequency_penalty=0.5) == pytest.approx([5, 3, 0, 2.5], abs=1e-5)
    assert logits_of(logit_bias={2: 1, 3: -3}) == pytest.approx([4, 3, 0, -1], abs=1e-5)
    assert logits_of(logit_bias={2: 2}, repetition_penalty=2.0) == pytest.approx([1.5, 1, 0, 0.5], abs=1e-5)


def test_extreme_values_stay_finite() -> None:
    logits = np.array([1.0, 3.0, 2.0], np.float32)
    extremes: list[Params] = [
        {"temperature": 1e-6},
        {"temperature": 1e6},
        {"logit_bias": {0: 1e30}, "temperature": 1e-6},
    ]
    cold, hot, biased = (sample([Case(logits, sampling_row(seed=2, **params))])[0] for params in extremes)
    assert cold.token_id == 1 and hot.error is None and biased.token_id == 0 and biased.logprob == 0.0
    huge, fine = sample(
        [Case(logits * np.float32(1e38), sampling_row(temperature=1e-3)), Case(logits, sampling_row(seed=2))]
    )
    assert isinstance(huge.error, EngineError) and "temperature" in str(huge.error) and fine.error is None


def test_logprobs_that_were_not_asked_for() -> None:
    logits = np.zeros(12, np.float32)
    for temperature in (0.0, 1.0):
        (sampled,) = sample([Case(logits, sampling_row(logprobs=False, temperature=temperature))])
        assert math.isnan(sampled.logprob) and sampled.top_logprobs is None


def test_no_rows() -> None:
    assert Sampler().sample(torch.empty(0, 100), []) == []
    assert Sampler().sample(torch.empty(0, 100), [], torch.empty(0, 4, dtype=torch.int32)) == []


@pytest.mark.parametrize("size", [37, 320, 5001])
def test_log_probabilities_of_given_tokens(size: int) -> None:
    random = np.random.default_rng(size)
    logits = torch.from_numpy(random.normal(size=(9, size)).astype(np.float32) * 4)
    targets = random.integers(0, size, 9).tolist()
    scores = token_logprobs(logits, targets, 4)
    assert scores == token_logprobs(logits, torch.tensor(targets), 4)
    for row, (target, (logprob, top)) in enumerate(zip(targets, scores, strict=True)):
        assert token_logprobs(logits[row : row + 1], [target], 4) == [(logprob, top)]
        case = Case(logits[row].numpy(), sampling_row(temperature=0, top_logprobs=4))
        expected = log_softmax(case.logits)
        assert logprob == pytest.approx(expected[target], abs=1e-5)
        assert top == sample([case])[0].top_logprobs, "scoring and sampling give the same bits"
    assert token_logprobs(logits, targets, 0) == [(logprob, None) for logprob, _ in scores]


def test_scoring_broken_logits_is_an_error() -> None:
    logits = torch.zeros(2, 10)
    logits[1, 3] = math.nan
    with pytest.raises(EngineError, match="finite"):
        token_logprobs(logits, [0, 0], 0)
