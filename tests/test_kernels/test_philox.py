"""The noise of sampling: known answers, golden values, and a second implementation in plain Python integers."""

import math
import struct

import numpy as np
import pytest
import torch

from drawloom.kernels.reference.philox import (
    GUMBEL_MAX,
    GUMBEL_MIN,
    gumbel,
    gumbel_from_words,
    philox_blocks,
    philox_words,
)

# (seed, position, token id, word, bits of g)
GOLDEN = [
    (0, 0, 0, 1713891541, "3f2cc258"),
    (0, 0, 1, 3781805453, "bf40eb19"),
    (0, 0, 3, 2600524760, "3d946d21"),
    (0, 0, 4, 4175744164, "bfa36588"),
    (0, 1, 0, 1792067052, "3f1dbf21"),
    (7, 0, 0, 4099963437, "bf907f05"),
    (7, 511, 49151, 4094915932, "bf8f6f16"),
    (7, 512, 129279, 2524714627, "3df724a4"),
    (2**32, 5, 10, 3554031757, "bf105341"),
    (2**63 - 1, 2**32 + 3, 129279, 4007180006, "bf7e8dfb"),
    (123456789012345, 4096, 77, 3625612148, "bf1eb6c8"),
    (42, 17, 100000, 1718209063, "3f2beb3e"),
]


def plain_philox(key: tuple[int, int], counter: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    (k0, k1), (c0, c1, c2, c3) = key, counter
    for _ in range(10):
        first, second = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (second >> 32) ^ c1 ^ k0, second % 2**32, (first >> 32) ^ c3 ^ k1, first % 2**32
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return c0, c1, c2, c3


def plain_word(seed: int, position: int, token_id: int) -> int:
    counter = (token_id // 4, position % 2**32, position // 2**32, 0)
    return plain_philox((seed % 2**32, seed // 2**32), counter)[token_id % 4]


def tensors(*columns: list[int]) -> list[torch.Tensor]:
    return [torch.tensor(column, dtype=torch.int64) for column in columns]


def test_known_answer_of_zero_key_and_counter() -> None:
    words = philox_blocks(*tensors([0], [0], [0]))
    assert words[:, 0].tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert plain_philox((0, 0), (0, 0, 0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)


def test_golden_values_one_by_one_and_together() -> None:
    seeds, positions, token_ids, expected_words, expected_bits = (list(column) for column in zip(*GOLDEN, strict=True))
    arguments = [torch.tensor(column) for column in (seeds, positions, token_ids)]
    assert philox_words(*arguments).tolist() == expected_words
    assert bits(gumbel(*arguments)) == expected_bits
    for seed, position, token_id, word, g_bits in GOLDEN:
        one = tensors([seed], [position], [token_id])
        assert philox_words(*one).tolist() == [word]
        assert bits(gumbel(*one)) == [g_bits]


def test_words_equal_plain_integer_arithmetic() -> None:
    random = np.random.default_rng(1)
    seeds = random.integers(0, 2**63, 300)
    positions = np.where(random.random(300) < 0.5, random.integers(0, 2**20, 300), random.integers(0, 2**62, 300))
    token_ids = random.integers(0, 200_000, 300)
    words = philox_words(*(torch.from_numpy(column) for column in (seeds, positions, token_ids)))
    rows = zip(seeds.tolist(), positions.tolist(), token_ids.tolist(), strict=True)
    assert words.tolist() == [plain_word(*row) for row in rows]


@pytest.mark.parametrize("count", [1, 5, 16383, 16384, 16385, 40000])
def test_a_word_does_not_depend_on_what_is_computed_with_it(count: int) -> None:
    seed, position = tensors([2**40 + 9], [77])
    blocks = torch.arange(count)
    words = philox_blocks(seed, position, blocks)
    assert words.shape == (4, count) and words.dtype == torch.uint32
    assert torch.equal(words, philox_blocks(seed.expand(count), position.expand(count), blocks))
    for block in {0, count // 2, count - 1}:
        assert torch.equal(words[:, block], philox_blocks(seed, position, torch.tensor([block]))[:, 0])
    assert torch.equal(words.T.reshape(-1), philox_words(seed, position, torch.arange(4 * count)))


def test_noise_does_not_depend_on_length_or_order() -> None:
    seed, position = tensors([3], [4])
    token_ids = torch.arange(5003)
    noise = gumbel(seed, position, token_ids)
    assert noise.dtype == torch.float32
    order = torch.from_numpy(np.random.default_rng(2).permutation(5003))
    assert torch.equal(gumbel(seed, position, order), noise[order])
    for start, stop in [(0, 1), (1, 8), (17, 40), (4999, 5003)]:
        assert torch.equal(gumbel(seed, position, token_ids[start:stop]), noise[start:stop])


def test_noise_is_the_stated_function_of_the_word() -> None:
    words = [0, 1, 2, 1000, 2**31, 2**32 - 2, 2**32 - 1, *np.random.default_rng(3).integers(0, 2**32, 500).tolist()]
    expected = [np.float32(-math.log(-math.log1p(-(word + 0.5) / 2**32))) for word in words]
    found = gumbel_from_words(torch.tensor(words, dtype=torch.uint32)).numpy()
    # Two libraries' float64 logarithms may differ in the last bit, which the rounding to float32 hides but in ties.
    assert np.count_nonzero(found != np.array(expected)) <= 1
    np.testing.assert_allclose(found, expected, rtol=1e-7)


def test_bounds_and_no_noise_for_nothing() -> None:
    assert 22.87 < GUMBEL_MAX < 22.88 and -3.14 < GUMBEL_MIN < -3.12
    every = gumbel_from_words(torch.linspace(0, 2**32 - 1, 100_001, dtype=torch.float64).to(torch.uint32))
    assert bool((every.diff() <= 0).all()), "the largest noise belongs to the smallest word"
    assert every[0] == GUMBEL_MAX and every[-1] == GUMBEL_MIN
    assert gumbel(*tensors([], [], [])).shape == (0,)


def test_the_noise_has_the_moments_of_a_gumbel_distribution() -> None:
    noise = gumbel(torch.tensor([5]), torch.tensor([0]), torch.arange(400_000)).double()
    assert abs(noise.mean().item() - 0.5772) < 0.01
    assert abs(noise.var().item() - math.pi**2 / 6) < 0.02


def bits(values: torch.Tensor) -> list[str]:
    return [struct.pack(">f", value).hex() for value in values.tolist()]
