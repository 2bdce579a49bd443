"""Blocked latent attention: right against float64, and the same bits however its queries come."""

import random

import pytest
import torch
from torch import Tensor

from drawloom.kernels.reference.mla_attention import mla_attention, plan_attention

LENGTH = 700
# heads, groups, latent, rotary
SHAPES = [(9, 3, 192, 192), (16, 1, 512, 64), (4, 1, 32, 16), (2, 1, 16, 8), (2, 2, 64, 64), (20, 1, 128, 64)]


class Case:
    def __init__(self, shape: tuple[int, int, int, int], dtype: torch.dtype, page_size: int) -> None:
        torch.manual_seed(sum(shape))
        self.heads, self.groups, self.latent, rotary = shape
        width = self.latent + rotary
        self.page_size = page_size
        num_pages = -(-LENGTH // page_size)
        order = torch.randperm(2 * num_pages).tolist()
        self.pages, self.other_pages = order[:num_pages], order[num_pages:]
        self.cache = torch.randn(2 * num_pages, page_size, width).to(dtype)
        self.q = torch.randn(LENGTH, self.heads, width if self.groups == 1 else rotary // self.groups).to(dtype)

    def run(self, specs: list[tuple[int, int, bool]]) -> tuple[list[Tensor], int]:
        """`specs`: (keys, queries, whether on the common pages). Output of each, and the blocks that were read."""
        plan = plan_attention(
            [(self.pages if common else self.other_pages)[: -(-keys // self.page_size)] for keys, _, common in specs],
            [keys for keys, _, _ in specs],
            [queries for _, queries, _ in specs],
            page_size=self.page_size,
            heads_per_group=self.heads // self.groups,
        )
        q = torch.cat([self.q[keys - queries : keys] for keys, queries, _ in specs])
        out = mla_attention(q, self.cache, plan, scale=0.1, latent_dim=self.latent, num_groups=self.groups)
        return list(out.split([queries for _, queries, _ in specs])), plan.num_blocks

    def exact(self) -> Tensor:
        rows = self.cache[torch.tensor(self.pages)].flatten(0, 1)[:LENGTH].double()
        if self.groups == 1:
            keys, values = rows.unsqueeze(1), rows[:, : self.latent].unsqueeze(1)
        else:
            keys = rows[:, self.latent :].unflatten(1, (self.groups, -1))
            values = rows[:, : self.latent].unflatten(1, (self.groups, -1))
        keys, values = (part.repeat_interleave(self.heads // self.groups, 1) for part in (keys, values))
        scores = torch.einsum("thd,khd->htk", self.q.double(), keys) * 0.1
        hidden = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        return torch.einsum("htk,khd->thd", scores.masked_fill(hidden, -torch.inf).softmax(-1), values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_bits_depend_on_the_query_and_its_keys_alone(shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    case = Case(shape, dtype, page_size=64)
    ((whole,), _) = case.run([(LENGTH, LENGTH, True)])
    exact = case.exact()
    assert (whole.double() - exact).norm() / exact.norm() < (2e-6 if dtype == torch.float32 else 1e-2)
    rng = random.Random(1)
    folded = 0
    for _ in range(12):
        specs = []
        for _ in range(rng.randint(1, 9)):
            keys = rng.randint(1, LENGTH)
            specs.append((keys, min(keys, rng.choice([1, 1, 1, 2, 3, rng.randint(1, 300)])), rng.random() < 0.7))
        parts, num_blocks = case.run(specs)
        folded += num_blocks < sum(-(-keys // 256) for keys, _, _ in specs)
        for (keys, queries, common), part in zip(specs, parts, strict=True):
            if common:
                assert torch.equal(part, whole[keys - queries : keys]), (specs, keys, queries)
    assert folded > 3, "sequences on the same pages must have shared blocks"


@pytest.mark.parametrize("page_size", [16, 128, 256])
def test_the_page_size_changes_no_bit(page_size: int) -> None:
    outputs = []
    for size in (64, page_size):
        case = Case((4, 1, 32, 16), torch.float32, size)
        rows = torch.randn(LENGTH, 48, generator=torch.Generator().manual_seed(1))
        for start in range(0, LENGTH, size):
            page = rows[start : start + size]
            case.cache[case.pages[start // size], : len(page)] = page
        case.q = torch.randn(LENGTH, 4, 48, generator=torch.Generator().manual_seed(2))
        ((whole,), _) = case.run([(LENGTH, LENGTH, True)])
        outputs.append(whole)
    assert torch.equal(*outputs)


def test_pages_of_others_are_never_read() -> None:
    """They may hold what went wrong in another sequence, and a mask doesn't hide a NaN."""
    case = Case((9, 3, 48, 48), torch.float32, 64)
    case.pages, case.other_pages = list(range(11)), list(range(11, 22))  # one right behind the other
    want, _ = case.run([(LENGTH, 3, True), (300, 1, True), (40, 40, True)])
    case.cache[torch.tensor(case.other_pages)] = torch.nan
    found, _ = case.run([(LENGTH, 3, True), (300, 1, True), (40, 40, True)])
    assert all(map(torch.equal, found, want)) and all(part.isfinite().all() for part in found)


def test_results_that_are_in_order_are_merged_as_they_are() -> None:
    case = Case((9, 3, 48, 48), torch.float32, 64)
    ((whole,), _) = case.run([(LENGTH, LENGTH, True)])
    tables = [case.pages[:10], case.other_pages[:10]]
    case.cache[torch.tensor(tables[1])] = case.cache[torch.tensor(tables[0])]
    decoding = plan_attention(tables, [600, 600], [1, 1], page_size=64, heads_per_group=3)
    ragged = plan_attention([tables[0], tables[1][:4]], [600, 200], [1, 1], page_size=64, heads_per_group=3)
    assert decoding.in_order and not ragged.in_order
    for plan, lengths in ((decoding, (600, 600)), (ragged, (600, 200))):
        q = torch.stack([case.q[length - 1] for length in lengths])
        out = mla_attention(q, case.cache, plan, scale=0.1, latent_dim=48, num_groups=3)
        assert torch.equal(out, torch.stack([whole[length - 1] for length in lengths]))


def test_every_number_of_query_rows_gives_the_same_bits() -> None:
    """The flash kernel slices query rows; no slice may be so short that it is multiplied in another order."""
    case = Case((5, 1, 64, 32), torch.float32, 64)
    ((whole,), _) = case.run([(LENGTH, LENGTH, True)])
    for queries in [*range(1, 70), 127, 128, 129, 255, 257]:
        ((part,), _) = case.run([(LENGTH, queries, True)])
        assert torch.equal(part, whole[-queries:]), queries
