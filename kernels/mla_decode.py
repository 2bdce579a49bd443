"""Latent attention over a paged cache on the GPU: decode, verification and prefill with the same bits.

A query's arithmetic is fixed by absolute positions. Keys come in blocks of 64 with a running maximum, four blocks make
a leaf that starts from zero, four leaves fold in order into a group, four groups into a section, and the sections fold
in order. One program may take a leaf, a group or a section, whichever keeps the device busy: every choice gives the
same bits, since a fold is an explicit fma and the sums of probabilities are taken by the matrix unit, in key order like
every product here. So bits depend on neither the batch nor how many query tokens came together.
Sources: FlashDecoding (split keys), FlashMLA (absorbed latent form); the fixed two-level cut is our own.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor

from .mla_plan import BLOCK_TOKENS, GROUP_LEAVES, LEAF_TOKENS, MlaPlan

__all__ = ["MlaConfig", "mla_decode"]

_LOG2_E = 1.4426950408889634
_SCRATCH_BYTES = 512 << 20


@dataclass(frozen=True)
class MlaConfig:
    """How to run it. No field changes a bit of the result.

    `fold`: a program takes a leaf (0), a group (1) or a section (2). `swap`: keys on the wide side of the matrix unit.
    """

    fold: int
    swap: bool = True
    tma: bool = True
    num_warps: int = 4
    num_stages: int = 2


def mla_decode(
    q: Tensor, cache: Tensor, plan: MlaPlan, *, scale: float, latent_dim: int, config: MlaConfig | None = None
) -> Tensor:
    """Attention of absorbed queries over one layer's cache.

    `q` [rows, heads, latent_dim + rope_dim] with the latent part first, `cache` [pages, page_size, latent_dim +
    rope_dim] with page_size a multiple of 64 and finite numbers everywhere; both bf16. The key is the whole cache row,
    the value its latent part. Returns [rows, heads, latent_dim] in q's dtype; softmax and folds in fp32. `scale` > 0.
    """
    rows, heads, width = q.shape
    num_pages, page_size, _ = cache.shape
    assert heads == plan.num_heads and cache.shape[2] == width and page_size % BLOCK_TOKENS == 0
    assert cache.is_contiguous() and scale > 0
    q = q.contiguous()
    chosen = config or _choose(plan)
    # Unpipelined tensor-descriptor loads of this loop are miscompiled by Triton 3.6: wrong results, illegal addresses.
    assert chosen.num_stages >= 2
    part_tokens = LEAF_TOKENS * GROUP_LEAVES**chosen.fold
    num_parts = triton.cdiv(plan.max_visible, part_tokens)
    out = torch.empty((rows, heads, latent_dim), dtype=q.dtype, device=q.device)
    flat = cache.view(num_pages * page_size, width)
    latent: Tensor | TensorDescriptor = flat
    rotary: Tensor | TensorDescriptor = flat
    if chosen.tma:
        latent = TensorDescriptor.from_tensor(flat, [BLOCK_TOKENS, latent_dim])
        rotary = TensorDescriptor.from_tensor(flat, [BLOCK_TOKENS, width - latent_dim])
    # Long prefills go in slices, so that the partial results stay bounded.
    tiles_at_once = max(1, _SCRATCH_BYTES // (num_parts * plan.block_rows * latent_dim * 4))
    for first_tile in range(0, len(plan.first_rows), tiles_at_once):
        tiles = plan.tiles[first_tile : first_tile + tiles_at_once]
        ends = (*plan.first_rows, plan.num_folded_rows)
        base_row, num_rows = ends[first_tile], ends[first_tile + len(tiles)] - ends[first_tile]
        if num_parts == 1:
            partial, stats, base_row = out, torch.empty((1,), dtype=torch.float32, device=q.device), 0
        else:
            partial = torch.empty((num_rows, num_parts, latent_dim), dtype=torch.float32, device=q.device)
            stats = torch.empty((num_rows, num_parts, 2), dtype=torch.float32, device=q.device)
        _mla_decode_kernel[(len(tiles) * num_parts,)](
            q, latent, rotary, plan.page_table, plan.visible, tiles, partial, stats,
            scale * _LOG2_E, plan.page_table.shape[1], len(tiles), num_parts, base_row,
            HEADS=heads, LATENT=latent_dim, ROPE=width - latent_dim, PAGE=page_size, BLOCK_R=plan.block_rows,
            FOLD=chosen.fold, SWAP=chosen.swap, TMA=chosen.tma, DIRECT=partial is out, OVERLAP=q.is_cuda,
            num_warps=chosen.num_warps, num_stages=chosen.num_stages,
        )  # fmt: skip
        if partial is not out:
            _mla_merge_kernel[(num_rows,)](
                partial, stats, plan.visible, out, num_parts, base_row,
                HEADS=heads, LATENT=latent_dim, PART=part_tokens, FOLD=chosen.fold, OVERLAP=q.is_cuda,
                num_warps=4, launch_pdl=q.is_cuda,
            )  # fmt: skip
    return out


def _choose(plan: MlaPlan) -> MlaConfig:
    """The coarsest cut that gives nearly every multiprocessor a program and whose accumulators fit in registers."""
    processors = torch.cuda.get_device_properties(plan.tiles.device).multi_processor_count
    for fold in (2, 1) if plan.block_rows == 16 else (1,):
        parts, finer = (triton.cdiv(plan.max_visible, LEAF_TOKENS * GROUP_LEAVES**level) for level in (fold, fold - 1))
        if parts < finer and len(plan.first_rows) * parts >= processors * 0.9:
            return MlaConfig(fold, num_warps=4 if plan.block_rows == 16 else 8)
    return MlaConfig(0)


@triton.jit
def _fold(m_a, l_a, acc_a, m_b, l_b, acc_b, AXIS: tl.constexpr):
    """State a, then b: maxima (base 2), sums and accumulators. An empty b (m -inf, l 0, acc 0) changes no bit of a."""
    m = tl.maximum(m_a, m_b)
    base = tl.where(m == float("-inf"), 0.0, m)
    w_a = tl.exp2(m_a - base)
    w_b = tl.exp2(m_b - base)
    l = tl.fma(l_b, w_b, l_a * w_a)  # noqa: E741
    w_a = tl.expand_dims(w_a, AXIS)
    w_b = tl.expand_dims(w_b, AXIS)
    return m, l, tl.fma(acc_b, tl.broadcast_to(w_b, acc_b.shape), acc_a * w_a)


@triton.jit(do_not_specialize=["table_width", "num_tiles", "num_parts", "base_row"])
def _mla_decode_kernel(
    q, latent, rotary, page_table, visible, tiles, partial, stats, scale, table_width, num_tiles, num_parts,
    base_row,
    HEADS: tl.constexpr, LATENT: tl.constexpr, ROPE: tl.constexpr, PAGE: tl.constexpr, BLOCK_R: tl.constexpr,
    FOLD: tl.constexpr, SWAP: tl.constexpr, TMA: tl.constexpr, DIRECT: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """One part (leaf, group or section) of the keys for one tile of folded rows.

    q [rows * HEADS, LATENT + ROPE]; latent, rotary: descriptors or pointers of the cache [tokens, LATENT + ROPE].
    partial fp32 [folded rows, parts, LATENT] and stats fp32 [folded rows, parts, (maximum, sum)], or with DIRECT
    partial is the normalised result.
    """
    WIDTH: tl.constexpr = LATENT + ROPE
    BLOCK: tl.constexpr = 64
    PART_BLOCKS: tl.constexpr = 4 * 4**FOLD
    AXIS: tl.constexpr = 0 if SWAP else 1  # the axis of keys and latent columns; the other one is the folded rows
    if OVERLAP and not DIRECT:
        gdc_launch_dependents()  # the merge may be launched now; it waits for this grid's end itself
    tile = tl.program_id(0) % num_tiles
    part = tl.program_id(0) // num_tiles
    sequence = tl.load(tiles + tile * 4)
    rows = tl.load(tiles + tile * 4 + 1) + tl.arange(0, BLOCK_R)
    row_mask = rows < tl.load(tiles + tile * 4 + 2)
    longest = tl.load(tiles + tile * 4 + 3)
    first = part * PART_BLOCKS * BLOCK
    if first >= longest:
        return
    num_blocks = tl.minimum(tl.cdiv(longest - first, BLOCK), PART_BLOCKS)
    sees = tl.load(visible + rows // HEADS, mask=row_mask, other=0)

    columns = tl.arange(0, LATENT)
    rope_columns = LATENT + tl.arange(0, ROPE)
    tokens = tl.arange(0, BLOCK)
    q_rows = q + rows.to(tl.int64) * WIDTH
    q_latent = tl.load(q_rows[:, None] + columns[None, :], mask=row_mask[:, None], other=0.0)
    q_rope = tl.load(q_rows[:, None] + rope_columns[None, :], mask=row_mask[:, None], other=0.0)
    if SWAP:
        acc = tl.zeros((LATENT, BLOCK_R), dtype=tl.float32)
        sums = tl.zeros((64, BLOCK_R), dtype=tl.float32)
        ones = tl.full((64, BLOCK), 1.0, dtype=q_latent.dtype)
    else:
        acc = tl.zeros((BLOCK_R, LATENT), dtype=tl.float32)
        sums = tl.zeros((BLOCK_R, 16), dtype=tl.float32)
        ones = tl.full((BLOCK, 16), 1.0, dtype=q_latent.dtype)
    m = tl.full((BLOCK_R,), float("-inf"), dtype=tl.float32)
    if FOLD >= 1:
        acc_g = tl.zeros_like(acc)
        m_g = tl.full((BLOCK_R,), float("-inf"), dtype=tl.float32)
        l_g = tl.zeros((BLOCK_R,), dtype=tl.float32)
    if FOLD >= 2:
        acc_s = tl.zeros_like(acc)
        m_s = tl.full((BLOCK_R,), float("-inf"), dtype=tl.float32)
        l_s = tl.zeros((BLOCK_R,), dtype=tl.float32)

    for block in range(num_blocks):
        position = first + block * BLOCK
        page = tl.load(page_table + sequence * table_width + position // PAGE)
        slot = page * PAGE + position % PAGE
        if TMA:
            keys = latent.load([slot, 0])
            rope_keys = rotary.load([slot, LATENT])
        else:
            base = latent + (slot.to(tl.int64) + tokens)[:, None] * WIDTH
            keys = tl.load(base + columns[None, :])
            rope_keys = tl.load(base + rope_columns[None, :])
        if SWAP:
            scores = tl.dot(keys, tl.trans(q_latent))
            scores = tl.dot(rope_keys, tl.trans(q_rope), scores)
            scores = tl.where((position + tokens)[:, None] < sees[None, :], scores, float("-inf"))
        else:
            scores = tl.dot(q_latent, tl.trans(keys))
            scores = tl.dot(q_rope, tl.trans(rope_keys), scores)
            scores = tl.where((position + tokens)[None, :] < sees[:, None], scores, float("-inf"))
        m_new = tl.maximum(m, tl.max(scores, axis=AXIS) * scale)
        base_m = tl.where(m_new == float("-inf"), 0.0, m_new)
        rescale = tl.expand_dims(tl.exp2(m - base_m), AXIS)
        shift = tl.broadcast_to(tl.expand_dims(-base_m, AXIS), scores.shape)
        p = tl.exp2(tl.fma(scores, tl.full(scores.shape, 1.0, tl.float32) * scale, shift)).to(keys.dtype)
        if SWAP:
            sums = tl.dot(ones, p, sums * rescale)
            acc = tl.dot(tl.trans(keys), p, acc * rescale)
        else:
            sums = tl.dot(p, ones, sums * rescale)
            acc = tl.dot(p, keys, acc * rescale)
        m = m_new
        if FOLD >= 1:
            if (block % 4 == 3) | (block == num_blocks - 1):
                m_g, l_g, acc_g = _fold(m_g, l_g, acc_g, m, tl.max(sums, axis=AXIS), acc, AXIS)
                m = tl.full((BLOCK_R,), float("-inf"), dtype=tl.float32)
                sums = tl.zeros_like(sums)
                acc = tl.zeros_like(acc)
        if FOLD >= 2:
            if (block % 16 == 15) | (block == num_blocks - 1):
                m_s, l_s, acc_s = _fold(m_s, l_s, acc_s, m_g, l_g, acc_g, AXIS)
                m_g = tl.full((BLOCK_R,), float("-inf"), dtype=tl.float32)
                l_g = tl.zeros((BLOCK_R,), dtype=tl.float32)
                acc_g = tl.zeros_like(acc_g)
    if FOLD == 0:
        m_s, l_s, acc_s = m, tl.max(sums, axis=AXIS), acc
    elif FOLD == 1:
        m_s, l_s, acc_s = m_g, l_g, acc_g
    slots = (rows - base_row).to(tl.int64) * num_parts + part
    pointers = tl.expand_dims(partial + slots * LATENT, AXIS) + tl.expand_dims(columns, 1 - AXIS)
    mask = tl.expand_dims(row_mask, AXIS)
    if DIRECT:
        result = acc_s / tl.expand_dims(l_s, AXIS)
        tl.store(pointers, result.to(partial.dtype.element_ty), mask=mask)
    else:
        tl.store(stats + slots * 2, m_s, mask=row_mask)
        tl.store(stats + slots * 2 + 1, l_s, mask=row_mask)
        tl.store(pointers, acc_s, mask=mask)


@triton.jit(do_not_specialize=["num_parts", "base_row"])
def _mla_merge_kernel(
    partial, stats, visible, out, num_parts, base_row,
    HEADS: tl.constexpr, LATENT: tl.constexpr, PART: tl.constexpr, FOLD: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Fold the parts of one folded row in order, through the levels that the programs left open, and normalise."""
    row = base_row + tl.program_id(0)
    parts = tl.cdiv(tl.load(visible + row // HEADS), PART)
    slots = tl.program_id(0).to(tl.int64) * num_parts
    columns = tl.arange(0, LATENT)
    if OVERLAP:
        gdc_wait()
    m, l = float("-inf"), 0.0  # noqa: E741
    acc = tl.zeros((LATENT,), dtype=tl.float32)
    for start in range(0, parts, 16):
        # All sixteen loads first: they are in flight together.
        m0, l0, a0, m1, l1, a1, m2, l2, a2, m3, l3, a3 = _load_four(
            partial, stats, slots, start, parts, columns, LATENT
        )
        m4, l4, a4, m5, l5, a5, m6, l6, a6, m7, l7, a7 = _load_four(
            partial, stats, slots, start + 4, parts, columns, LATENT
        )
        m8, l8, a8, m9, l9, a9, ma, la, aa, mb, lb, ab = _load_four(
            partial, stats, slots, start + 8, parts, columns, LATENT
        )
        mc, lc, ac, md, ld, ad, me, le, ae, mf, lf, af = _load_four(
            partial, stats, slots, start + 12, parts, columns, LATENT
        )
        if FOLD < 2:
            m0, l0, a0 = _fold_four(m0, l0, a0, m1, l1, a1, m2, l2, a2, m3, l3, a3)
            m4, l4, a4 = _fold_four(m4, l4, a4, m5, l5, a5, m6, l6, a6, m7, l7, a7)
            m8, l8, a8 = _fold_four(m8, l8, a8, m9, l9, a9, ma, la, aa, mb, lb, ab)
            mc, lc, ac = _fold_four(mc, lc, ac, md, ld, ad, me, le, ae, mf, lf, af)
        if FOLD == 0:
            m0, l0, a0 = _fold_four(m0, l0, a0, m4, l4, a4, m8, l8, a8, mc, lc, ac)
            m, l, acc = _fold_row(m, l, acc, m0, l0, a0)  # noqa: E741
        elif FOLD == 1:
            m, l, acc = _fold_row(m, l, acc, m0, l0, a0)  # noqa: E741
            m, l, acc = _fold_row(m, l, acc, m4, l4, a4)  # noqa: E741
            m, l, acc = _fold_row(m, l, acc, m8, l8, a8)  # noqa: E741
            m, l, acc = _fold_row(m, l, acc, mc, lc, ac)  # noqa: E741
        else:
            m, l, acc = _fold_four_onto(m, l, acc, m0, l0, a0, m1, l1, a1, m2, l2, a2, m3, l3, a3)  # noqa: E741
            m, l, acc = _fold_four_onto(m, l, acc, m4, l4, a4, m5, l5, a5, m6, l6, a6, m7, l7, a7)  # noqa: E741
            m, l, acc = _fold_four_onto(m, l, acc, m8, l8, a8, m9, l9, a9, ma, la, aa, mb, lb, ab)  # noqa: E741
            m, l, acc = _fold_four_onto(m, l, acc, mc, lc, ac, md, ld, ad, me, le, ae, mf, lf, af)  # noqa: E741
    tl.store(out + row.to(tl.int64) * LATENT + columns, (acc / l).to(out.dtype.element_ty))


@triton.jit
def _load_four(partial, stats, slots, part, parts, columns, LATENT: tl.constexpr):
    """The states of four parts; one beyond the last is empty."""
    m0, l0, a0 = _load_part(partial, stats, slots, part, parts, columns, LATENT)
    m1, l1, a1 = _load_part(partial, stats, slots, part + 1, parts, columns, LATENT)
    m2, l2, a2 = _load_part(partial, stats, slots, part + 2, parts, columns, LATENT)
    m3, l3, a3 = _load_part(partial, stats, slots, part + 3, parts, columns, LATENT)
    return m0, l0, a0, m1, l1, a1, m2, l2, a2, m3, l3, a3


@triton.jit
def _load_part(partial, stats, slots, part, parts, columns, LATENT: tl.constexpr):
    there = part < parts
    m = tl.load(stats + (slots + part) * 2, mask=there, other=float("-inf"))
    l = tl.load(stats + (slots + part) * 2 + 1, mask=there, other=0.0)  # noqa: E741
    acc = tl.load(partial + (slots + part) * LATENT + columns, mask=part + columns * 0 < parts, other=0.0)
    return m, l, acc


@triton.jit
def _fold_four(m0, l0, a0, m1, l1, a1, m2, l2, a2, m3, l3, a3):
    """Four states in order. Folding onto the empty state changes no bit, so the first is taken as it is."""
    m0, l0, a0 = _fold_row(m0, l0, a0, m1, l1, a1)
    m0, l0, a0 = _fold_row(m0, l0, a0, m2, l2, a2)
    return _fold_row(m0, l0, a0, m3, l3, a3)


@triton.jit
def _fold_four_onto(m, l, acc, m0, l0, a0, m1, l1, a1, m2, l2, a2, m3, l3, a3):  # noqa: E741
    m, l, acc = _fold_row(m, l, acc, m0, l0, a0)  # noqa: E741
    m, l, acc = _fold_row(m, l, acc, m1, l1, a1)  # noqa: E741
    m, l, acc = _fold_row(m, l, acc, m2, l2, a2)  # noqa: E741
    return _fold_row(m, l, acc, m3, l3, a3)


@triton.jit
def _fold_row(m_a, l_a, acc_a, m_b, l_b, acc_b):
    """As `_fold`, for one row."""
    m = tl.maximum(m_a, m_b)
    base = tl.where(m == float("-inf"), 0.0, m)
    w_a = tl.exp2(m_a - base)
    w_b = tl.exp2(m_b - base)
    return m, tl.fma(l_b, w_b, l_a * w_a), tl.fma(acc_b, tl.broadcast_to(w_b, acc_b.shape), acc_a * w_a)
