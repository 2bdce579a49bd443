"""Draw one token a row on the GPU: bitmask, temperature and seeded Gumbel-max race in one pass over the logits.

The noise of token v is that of `reference.philox`: Philox4x32-10 with key (seed), counter (v // 4, position, 0), word
v % 4, and g = float32(-log(-log1p(-u))) in float64. A double-precision logarithm of every word would cost more than
reading the logits. But the winner has the smallest -log1p(-u) / exp(l / T), and u <= -log1p(-u) <= u / (1 - u), so
one exponential a token bounds it from both sides, and the few tokens of a chunk that may win are settled exactly. There
1 - u = (2³² - word - 1/2) / 2³², which float64 holds exactly, so log1p(-u) is the logarithm of an exact number.
Cuts (top-k, top-p, min-p) are not here: rows that ask for them are sampled on the CPU.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl
from torch import Tensor

from .log_softmax import _merge_stats

__all__ = ["adjust_logits", "philox_words", "sample_tokens"]

_CHUNK = 2048


def adjust_logits(
    logits: Tensor, rows: Tensor, ids: Tensor, bias: Tensor, repetition: Tensor, subtracted: Tensor
) -> None:
    """Change `logits` fp32 [rows, vocabulary] in place where a row has a bias or a penalty; all lists [n].

    Entry i belongs to token `ids[i]` (int64) of row `rows[i]` (int64), a pair at most once: `bias` is added, a positive
    result is divided by `repetition` and another one multiplied, `subtracted` (presence and frequency penalties) is
    taken off. fp32.
    """
    assert logits.is_contiguous() and logits.dtype == torch.float32
    count = rows.shape[0]
    if count:
        _adjust_logits_kernel[(triton.cdiv(count, 256),)](
            logits, rows, ids, bias, repetition, subtracted, logits.shape[1], count,
            BLOCK=256, enable_fp_fusion=False,
        )  # fmt: skip


def sample_tokens(
    logits: Tensor, temperatures: Tensor, seeds: Tensor, positions: Tensor, bitmask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(token ids int64 [rows], log-probabilities fp32 [rows]) of `logits` fp32 [rows, vocabulary].

    The token is argmax over the allowed v of l_v / T + g(seed, position, v), or of l_v where T is 0; ties go to the
    smaller id. `temperatures` fp32, `seeds` and `positions` int64, each [rows]; a set bit of `bitmask` int32 [rows,
    ceil(vocabulary / 32)] allows its id. The log-probability is the winner's among the allowed, at temperature 1.
    A row that allows nothing, or whose largest logit is not a finite number, gets id -1 and NaN.
    """
    rows, size = logits.shape
    assert logits.is_contiguous() and logits.dtype == torch.float32
    assert bitmask is None or (bitmask.is_contiguous() and bitmask.shape == (rows, triton.cdiv(size, 32)))
    ids = torch.empty((rows,), dtype=torch.int64, device=logits.device)
    logprobs = torch.empty((rows,), dtype=torch.float32, device=logits.device)
    if rows == 0:
        return ids, logprobs
    chunks = triton.cdiv(size, _CHUNK)
    stats = torch.empty((rows, chunks, 2), dtype=torch.float32, device=logits.device)
    leaders = torch.empty((rows, chunks, 2), dtype=torch.float32, device=logits.device)
    leader_ids = torch.empty((rows, chunks), dtype=torch.int32, device=logits.device)
    _race_kernel[(rows, chunks)](
        logits, logits if bitmask is None else bitmask, temperatures, seeds, positions, stats, leaders, leader_ids,
        size, chunks, triton.cdiv(size, 32), CHUNK=_CHUNK, MASKED=bitmask is not None, num_warps=4,
    )  # fmt: skip
    _winner_kernel[(rows,)](
        stats, leaders, leader_ids, ids, logprobs, chunks, CHUNKS=triton.next_power_of_2(chunks), num_warps=1
    )
    return ids, logprobs


def philox_words(seed: int, position: int, count: int, device: torch.device) -> Tensor:
    """The words of token ids 0 to `count` - 1 (a multiple of 4), int64 [count]: what the race draws from."""
    words = torch.empty((count,), dtype=torch.int64, device=device)
    place = torch.tensor([seed, position], device=device)
    _philox_kernel[(triton.cdiv(count, 1024),)](place, words, count, BLOCK=1024)
    return words


@triton.jit
def _words(seed, position, first, CHUNK: tl.constexpr):
    """The words of tokens first to first + CHUNK - 1, uint32 [CHUNK]. first is a multiple of 4."""
    blocks = (first // 4 + tl.arange(0, CHUNK // 4)).to(tl.uint32)
    low = (position & 0xFFFFFFFF).to(tl.uint32) + tl.zeros_like(blocks)
    high = (position >> 32).to(tl.uint32) + tl.zeros_like(blocks)
    w0, w1, w2, w3 = tl.philox(seed, blocks, low, high, tl.zeros_like(blocks))
    return tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), (CHUNK,))


@triton.jit
def _word(seed, position, token):
    """The word of one token, int64."""
    block = (token // 4).to(tl.uint32)
    low = (position & 0xFFFFFFFF).to(tl.uint32)
    high = (position >> 32).to(tl.uint32)
    w0, w1, w2, w3 = tl.philox(seed, block, low, high, block * 0)
    lane = token % 4
    return tl.where(lane < 2, tl.where(lane == 0, w0, w1), tl.where(lane == 2, w2, w3)).to(tl.int64)


@triton.jit
def _exact_noise(word):
    """g, rounded from float64. `word` int64."""
    rest = (4294967296.0 - word.to(tl.float64) - 0.5) * 2.3283064365386963e-10
    return (-tl.log(-tl.log(rest))).to(tl.float32)


@triton.jit
def _race_kernel(
    logits, bitmask, temperatures, seeds, positions, stats, leaders, leader_ids, size, chunks, mask_words,
    CHUNK: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """One chunk of one row: (maximum, sum of exp) in stats, (score, logit) and id of its leader."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    lanes = tl.arange(0, CHUNK)
    tokens = chunk * CHUNK + lanes
    allowed = tokens < size
    if MASKED:
        bits = tl.load(bitmask + row * mask_words + tokens // 32, mask=allowed, other=0)
        allowed = allowed & (((bits >> (tokens % 32)) & 1) != 0)
    x = tl.load(logits + row * size + tokens, mask=allowed, other=float("-inf"))
    top = tl.max(x, axis=0)
    total = tl.sum(tl.exp(x - tl.where(top == float("-inf"), 0.0, top)), axis=0)
    slot = row * chunks + chunk
    tl.store(stats + slot * 2, top)
    tl.store(stats + slot * 2 + 1, total)

    temperature = tl.load(temperatures + row)
    seed = tl.load(seeds + row)
    position = tl.load(positions + row)
    greedy = temperature == 0.0
    divisor = tl.where(greedy, 1.0, temperature)
    words = _words(seed, position, chunk * CHUNK, CHUNK)
    u = (words.to(tl.float32) + 0.5) * 2.3283064365386963e-10
    rest = ((words ^ 0xFFFFFFFF).to(tl.float32) + 0.5) * 2.3283064365386963e-10
    shown = tl.where(top == float("-inf"), 0.0, top)
    least = u * tl.exp2((shown - x) * (1.4426950408889634 / divisor))
    # More than the roundings of the scores (in fp32, near top / T) and of these bounds.
    slack = tl.exp(0.002 + tl.abs(shown / divisor) * 1e-6)
    bound = tl.min(tl.where(x > float("-inf"), least / rest, float("inf")), axis=0) * slack
    pending = tl.where(greedy, x == top, least <= bound) & (x > float("-inf"))
    pending = pending.to(tl.int32) * (CHUNK - lanes)  # the first one has the largest number
    leader = tl.full((), float("-inf"), dtype=tl.float32)
    leader_logit = tl.full((), float("-inf"), dtype=tl.float32)
    leader_lane = tl.full((), 0, dtype=tl.int32)
    first = tl.max(pending, axis=0)
    while first > 0:
        lane = CHUNK - first
        logit = tl.load(logits + row * size + chunk * CHUNK + lane)
        score = tl.div_rn(logit, divisor)
        if not greedy:
            score += _exact_noise(_word(seed, position, chunk * CHUNK + lane))
        better = score > leader  # lanes come in ascending order, so a tie stays with the smaller id
        leader = tl.where(better, score, leader)
        leader_logit = tl.where(better, logit, leader_logit)
        leader_lane = tl.where(better, lane, leader_lane)
        pending = tl.where(lanes == lane, 0, pending) * tl.where(greedy, 0, 1)
        first = tl.max(pending, axis=0)
    tl.store(leaders + slot * 2, leader)
    tl.store(leaders + slot * 2 + 1, leader_logit)
    tl.store(leader_ids + slot, chunk * CHUNK + leader_lane)


@triton.jit
def _winner_kernel(stats, leaders, leader_ids, ids, logprobs, chunks, CHUNKS: tl.constexpr):
    """The best of one row's leaders."""
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, CHUNKS)
    slots = row * chunks + index
    scores = tl.load(leaders + slots * 2, mask=index < chunks, other=float("-inf"))
    best = tl.argmax(scores, axis=0, tie_break_left=True)
    top, total = _merge_stats(stats + row * chunks * 2, chunks, CHUNKS)
    logit = tl.load(leaders + (row * chunks + best) * 2 + 1)
    token = tl.load(leader_ids + row * chunks + best).to(tl.int64)
    usable = (tl.abs(top) < float("inf")) & (total == total)
    tl.store(ids + row, tl.where(usable, token, -1))
    tl.store(logprobs + row, tl.where(usable, (logit - top) - tl.log(total), float("nan")))


@triton.jit
def _adjust_logits_kernel(logits, rows, ids, bias, repetition, subtracted, size, count, BLOCK: tl.constexpr):
    entries = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = entries < count
    places = logits + tl.load(rows + entries, mask=mask, other=0) * size + tl.load(ids + entries, mask=mask, other=0)
    x = tl.load(places, mask=mask, other=0.0) + tl.load(bias + entries, mask=mask, other=0.0)
    penalty = tl.load(repetition + entries, mask=mask, other=1.0)
    x = tl.where(x > 0, tl.div_rn(x, penalty), x * penalty) - tl.load(subtracted + entries, mask=mask, other=0.0)
    tl.store(places, x, mask=mask)


@triton.jit
def _philox_kernel(place, words, count, BLOCK: tl.constexpr):
    first = tl.program_id(0) * BLOCK
    tokens = first + tl.arange(0, BLOCK)
    drawn = _words(tl.load(place), tl.load(place + 1), first, BLOCK)
    tl.store(words + tokens, drawn.to(tl.int64), mask=tokens < count)
