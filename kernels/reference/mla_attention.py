"""Latent attention over a paged cache, with bits that depend on the query and its keys alone.

The keys of a sequence are cut at absolute multiples of 256 tokens. Each block is one row of the batch dimension of a
flash call that also gives the log-sum-exp, and the partial results of a query are merged in block order in fp32. So a
query's arithmetic is the same in prefill, chunked prefill, decode and verification. Where several sequences hold the
same pages their queries are folded into one block, which reads the keys once and changes no bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

__all__ = ["BLOCK_TOKENS", "AttentionPlan", "mla_attention", "plan_attention"]

BLOCK_TOKENS = 256
# The flash kernel cuts query rows into slices of 32 or more; a slice of one or two rows would be multiplied in another
# order. So at least 3 rows, and above one slice a multiple of 16.
_MIN_ROWS = 3
_ROW_MULTIPLE = 16
_SMALL = 16
# Row v masks all keys but the first v. The plan is made between two steps, where numpy's small calls cost least.
_MASKS = np.where(np.arange(BLOCK_TOKENS) < np.arange(BLOCK_TOKENS + 1)[:, None], 0.0, -np.inf).astype(np.float32)


@dataclass(frozen=True, slots=True)
class _BlockCall:
    """Blocks whose numbers of query rows are close enough to share one flash call."""

    pages: Tensor  # int64 [blocks * pages_per_block]
    rows: Tensor  # int64 [blocks * num_rows]: query row, padded with row 0
    mask: Tensor  # fp32 [blocks or 1, 1, num_rows * heads_per_group or 1, 256], added to the scores
    valid: Tensor | None  # int64: which of blocks * num_rows are no padding; None: all
    targets: Tensor  # int64 [valid]: row * max_blocks + block index
    num_blocks: int
    num_rows: int


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """What every layer of one step attends to. Built once a step by :func:`plan_attention`."""

    calls: tuple[_BlockCall, ...]
    num_rows: int
    max_blocks: int
    in_order: bool  # the partial results come from one call, row by row and block by block

    @property
    def num_blocks(self) -> int:
        """Blocks of keys that are read in each layer: shared ones count once."""
        return sum(call.num_blocks for call in self.calls)


def plan_attention(
    page_tables: Sequence[Sequence[int]],
    seq_lens: Sequence[int],
    query_lens: Sequence[int],
    *,
    page_size: int,
    heads_per_group: int,
) -> AttentionPlan:
    """Plan one step: sequence i asks with its last `query_lens[i]` of `seq_lens[i]` tokens, stored in `page_tables[i]`.

    Query rows are numbered through the sequences in order. `heads_per_group` query heads share a key.
    """
    assert BLOCK_TOKENS % page_size == 0
    blocks = _collect_blocks(page_tables, seq_lens, query_lens, BLOCK_TOKENS // page_size)
    max_blocks = max((index for _, index in blocks), default=0) + 1
    buckets: dict[tuple[int, bool], list[tuple[tuple[int, ...], int, list[tuple[int, int]]]]] = {}
    for (pages, index), queries in blocks.items():
        small = len(queries) <= _SMALL
        full = not small and all(visible == BLOCK_TOKENS for _, visible in queries)
        buckets.setdefault((len(queries).bit_length(), full), []).append((pages, index, queries))
    calls = tuple(
        _block_call(members, full, BLOCK_TOKENS // page_size, heads_per_group, max_blocks)
        for (_, full), members in buckets.items()
    )
    num_rows = sum(query_lens)
    in_order = len(calls) == 1 and np.array_equal(calls[0].targets.numpy(), np.arange(num_rows * max_blocks))
    return AttentionPlan(calls, num_rows, max_blocks, in_order and calls[0].valid is None)


def mla_attention(
    q: Tensor, cache: Tensor, plan: AttentionPlan, *, scale: float, latent_dim: int, num_groups: int = 1
) -> Tensor:
    """Attention of `q` over one layer's cache pages.

    `cache` [pages, page_size, latent_dim + rope_dim] must hold finite numbers everywhere.
    `num_groups` 1: `q` [rows, heads, latent_dim + rope_dim] is the absorbed query, the key is the whole cache row and
    the value its latent part; returns [rows, heads, latent_dim]. `num_groups` g > 1 (a grouped-query model in latent
    form): `q` [rows, heads, rope_dim / g], head h reads slice h // (heads / g) of the rotary part as key and of the
    latent part as value; returns [rows, heads, latent_dim / g]. In q's dtype; softmax and merge in fp32.
    """
    parts = [_attend(q, cache, call, scale, latent_dim, num_groups) for call in plan.calls]
    if plan.max_blocks == 1 and len(parts) == 1 and plan.calls[0].valid is None:
        order = plan.calls[0].rows
        return _in_row_order(parts[0][0], order)
    partial, log_sums = parts[0] if plan.in_order else _scattered(parts, plan)
    heads, width = partial.shape[1:]
    partial = partial.float().view(plan.num_rows, plan.max_blocks, heads, width)
    return _merge(partial, log_sums.view(plan.num_rows, plan.max_blocks, heads)).to(q.dtype)


def _scattered(parts: list[tuple[Tensor, Tensor]], plan: AttentionPlan) -> tuple[Tensor, Tensor]:
    """All partial results, fp32 [rows * max_blocks, heads, width] and [rows * max_blocks, heads]."""
    out, log_sum = parts[0]
    slots = plan.num_rows * plan.max_blocks
    partial = out.new_zeros((slots, *out.shape[1:]), dtype=torch.float32)
    log_sums = log_sum.new_full((slots, *log_sum.shape[1:]), -torch.inf)
    for (out, log_sum), call in zip(parts, plan.calls, strict=True):
        partial.index_copy_(0, call.targets, out.float())
        log_sums.index_copy_(0, call.targets, log_sum)
    return partial, log_sums


def _in_row_order(out: Tensor, rows: Tensor) -> Tensor:
    result = torch.empty_like(out)
    result.index_copy_(0, rows, out)
    return result


def _attend(
    q: Tensor, cache: Tensor, call: _BlockCall, scale: float, latent_dim: int, num_groups: int
) -> tuple[Tensor, Tensor]:
    """Partial results of one call: out [valid, heads, width] and log-sum-exp [valid, heads]."""
    heads, width = q.shape[1:]
    blocks, rows, per_group = call.num_blocks, call.num_rows, heads // num_groups
    keys = cache.index_select(0, call.pages).view(blocks, BLOCK_TOKENS, -1)
    if num_groups == 1:
        key = value = keys.unsqueeze(1)
    else:
        key = keys[..., latent_dim:].view(blocks, BLOCK_TOKENS, num_groups, width).transpose(1, 2)
        value = keys[..., :latent_dim].view(blocks, BLOCK_TOKENS, num_groups, width).transpose(1, 2)
    folded = q.index_select(0, call.rows).view(blocks, rows, num_groups, per_group, width)
    folded = folded.transpose(1, 2).reshape(blocks, num_groups, rows * per_group, width)
    out, log_sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        folded, key, value, attn_mask=call.mask, scale=scale
    )
    out = out.view(blocks, num_groups, rows, per_group, width).transpose(1, 2).reshape(blocks * rows, heads, width)
    log_sum = log_sum.view(blocks, num_groups, rows, per_group).transpose(1, 2).reshape(blocks * rows, heads)
    if num_groups == 1:
        out = out[..., :latent_dim]
    if call.valid is not None:
        out, log_sum = out.index_select(0, call.valid), log_sum.index_select(0, call.valid)
    return out, log_sum


def _merge(partial: Tensor, log_sums: Tensor) -> Tensor:
    """Merge [rows, blocks, heads, width] in block order. An absent block has log-sum-exp -inf and adds exactly zero."""
    weights = (log_sums - log_sums.amax(1, keepdim=True)).exp_().unsqueeze(-1)
    partial.mul_(weights)
    total, norm = partial[:, 0], weights[:, 0]
    for block in range(1, partial.shape[1]):
        total = total + partial[:, block]
        norm = norm + weights[:, block]
    return total / norm


def _collect_blocks(
    page_tables: Sequence[Sequence[int]], seq_lens: Sequence[int], query_lens: Sequence[int], pages_per_block: int
) -> dict[tuple[tuple[int, ...], int], list[tuple[int, int]]]:
    """(pages, block index) -> [(query row, visible keys)]. Sequences that hold the same pages share the block."""
    blocks: dict[tuple[tuple[int, ...], int], list[tuple[int, int]]] = {}
    first_row = 0
    for pages, seq_len, query_len in zip(page_tables, seq_lens, query_lens, strict=True):
        first_position = seq_len - query_len
        for index in range((seq_len + BLOCK_TOKENS - 1) // BLOCK_TOKENS):
            start = index * BLOCK_TOKENS
            key = (tuple(pages[index * pages_per_block : (index + 1) * pages_per_block]), index)
            queries = blocks.setdefault(key, [])
            for position in range(max(first_position, start), seq_len):
                queries.append((first_row + position - first_position, min(position + 1 - start, BLOCK_TOKENS)))
        first_row += query_len
    return blocks


def _block_call(
    members: list[tuple[tuple[int, ...], int, list[tuple[int, int]]]],
    full: bool,
    pages_per_block: int,
    heads_per_group: int,
    max_blocks: int,
) -> _BlockCall:
    num_rows = _padded_rows(max(len(queries) for _, _, queries in members), heads_per_group)
    pages: list[int] = []
    rows: list[int] = []
    visible: list[int] = []
    valid: list[int] = []
    targets: list[int] = []
    for block_pages, index, queries in members:
        # A page beyond the sequence's end is masked, which doesn't hide a NaN: only a page of its own will do, so that
        # what went wrong in another sequence stays there.
        pages += block_pages + block_pages[:1] * (pages_per_block - len(block_pages))
        valid += range(len(rows), len(rows) + len(queries))
        padding = num_rows - len(queries)
        rows += [row for row, _ in queries] + [0] * padding
        visible += [count for _, count in queries] + [BLOCK_TOKENS] * padding
        targets += [row * max_blocks + index for row, _ in queries]
    return _BlockCall(
        pages=_tensor(pages),
        rows=_tensor(rows),
        mask=_mask([BLOCK_TOKENS], 1, 1) if full else _mask(visible, len(members), heads_per_group),
        valid=None if len(valid) == len(rows) else _tensor(valid),
        targets=_tensor(targets),
        num_blocks=len(members),
        num_rows=num_rows,
    )


def _tensor(numbers: list[int]) -> Tensor:
    return torch.from_numpy(np.array(numbers, dtype=np.int64))


def _mask(visible: list[int], num_blocks: int, heads_per_group: int) -> Tensor:
    """[blocks, 1, rows * heads_per_group, 256]: 0 for the first `visible` keys of a row, -inf for the others."""
    folded = np.repeat(np.array(visible), heads_per_group)
    return torch.from_numpy(_MASKS[folded].reshape(num_blocks, 1, -1, BLOCK_TOKENS))


def _padded_rows(num_rows: int, heads_per_group: int) -> int:
    """The smallest number of query rows from `num_rows` on whose folded rows the flash kernel treats alike."""
    while True:
        folded = num_rows * heads_per_group
        if folded >= _MIN_ROWS and (folded <= 2 * _SMALL or folded % _ROW_MULTIPLE == 0):
            return num_rows
        num_rows += 1
