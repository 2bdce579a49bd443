"""Seeds: drawn within bounds, derived the same for ever, different for different paths."""

import hashlib
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from drawloom.runtime.seeds import SEED_LIMIT, derive_seed, draw_seed, sample_seed

SEEDED = settings(derandomize=True, deadline=None)
PATHS = st.lists(st.one_of(st.integers(-(2**63), 2**63 - 1), st.text(max_size=8)), max_size=4).map(tuple)


def test_golden_values() -> None:
    assert derive_seed(0, ()) == 3410756493081906042
    assert derive_seed(7, ("sample", 1)) == 5473310271990790331
    assert derive_seed(2**63 - 1, ("branch", -1, "é", "")) == 7367626330582943826


def test_the_bytes_are_those_of_the_description() -> None:
    data = (7).to_bytes(8, "big") + b"s" + (6).to_bytes(8, "big") + b"sample" + b"i" + (1).to_bytes(8, "big")
    assert derive_seed(7, ("sample", 1)) == int.from_bytes(hashlib.sha256(data).digest()[:8], "big") & (2**63 - 1)


def test_drawn_seeds_are_in_range_and_differ() -> None:
    seeds = {draw_seed() for _ in range(100)}
    assert len(seeds) == 100 and all(0 <= seed < SEED_LIMIT for seed in seeds)


def test_sample_0_has_the_seed_of_the_request() -> None:
    assert sample_seed(42, 0) == 42
    assert sample_seed(42, 3) == derive_seed(42, ("sample", 3)) != 42
    assert len({sample_seed(42, sample) for sample in range(1000)}) == 1000


def test_paths_that_look_alike_are_told_apart() -> None:
    paths: list[tuple[str | int, ...]] = [(), ("",), ("", ""), ("ab",), ("a", "b"), ("b", "a"), (1,), ("1",), (1, 1)]
    seeds = {derive_seed(seed, path) for seed, path in product((0, 1), paths)}
    assert len(seeds) == 2 * len(paths)


@SEEDED
@given(st.integers(0, SEED_LIMIT - 1), PATHS, PATHS)
def test_derived_seeds_are_in_range_and_distinct(
    seed: int, one: tuple[str | int, ...], other: tuple[str | int, ...]
) -> None:
    first, second = derive_seed(seed, one), derive_seed(seed, other)
    assert 0 <= first < SEED_LIMIT
    assert (first == second) == (one == other)


def test_a_lone_surrogate_has_a_seed_too() -> None:
    assert derive_seed(1, ("\ud800",)) != derive_seed(1, ("\ud801",))
