"""Rotary position embedding on the GPU, alone and fused with the write of a row of the latent cache."""
# mypy: allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl
from torch import Tensor

from .rms_norm import _normalize, warps_for

__all__ = ["apply_rope", "write_latent"]


def apply_rope(x: Tensor, cos_sin: Tensor) -> Tensor:
    """Rotate each pair (x[2i], x[2i+1]) of `x` [rows, heads, width] by its row's `cos_sin` [rows, width / 2, 2] fp32.

    fp32 inside, x's dtype out, contiguous. x may be a slice: only its last dimension must be dense. The twin's bits.
    """
    rows, heads, width = x.shape
    assert x.stride(2) == 1 and cos_sin.is_contiguous()
    out = torch.empty((rows, heads, width), dtype=x.dtype, device=x.device)
    if rows:
        _rope_kernel[(rows,)](
            x, cos_sin, out, x.stride(0), x.stride(1), heads,
            HALF=width // 2, HEADS=triton.next_power_of_2(heads), enable_fp_fusion=False,
        )  # fmt: skip
    return out


def write_latent(kv: Tensor, weight: Tensor, eps: float, cos_sin: Tensor, slots: Tensor, cache: Tensor) -> None:
    """Write `kv` [rows, latent + rope] to the rows `slots` (int64 [rows]) of `cache` [pages, page_size, latent + rope].

    The latent part is normalised as by `rms_norm` with `weight` [latent], the rotary part turned as by `apply_rope`
    with `cos_sin` [rows, rope / 2, 2]: the same bits as those two and a copy. Slot: page * page_size + offset.
    """
    rows, width = kv.shape
    latent = weight.shape[0]
    assert cache.is_contiguous() and cache.shape[-1] == width and latent == triton.next_power_of_2(latent)
    if rows:
        _write_latent_kernel[(rows,)](
            kv, weight, cos_sin, slots, cache, kv.stride(0), eps,
            LATENT=latent, HALF=(width - latent) // 2, num_warps=warps_for(latent),
        )  # fmt: skip


@triton.jit
def _rope_kernel(x, cos_sin, out, row_stride, head_stride, heads, HALF: tl.constexpr, HEADS: tl.constexpr):
    """All heads of one row."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, HEADS)[:, None]
    column = tl.arange(0, 2 * HALF)[None, :]
    pair = tl.arange(0, HALF)[None, :]
    mask = (head < heads) & (column < 2 * HALF)
    # Whole rows are loaded and stored; the pairs come apart in registers.
    x_pairs = tl.load(x + row * row_stride + head * head_stride + column, mask=mask, other=0.0).to(tl.float32)
    a, b = tl.split(tl.reshape(x_pairs, (HEADS, HALF, 2)))
    cos = tl.load(cos_sin + (row * HALF + pair) * 2)
    sin = tl.load(cos_sin + (row * HALF + pair) * 2 + 1)
    turned = tl.reshape(tl.join(a * cos - b * sin, b * cos + a * sin), (HEADS, 2 * HALF))
    tl.store(out + (row * heads + head) * 2 * HALF + column, turned.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _write_latent_kernel(
    kv, weight, cos_sin, slots, cache, row_stride, eps, LATENT: tl.constexpr, HALF: tl.constexpr
):  # fmt: skip
    """One row of the cache."""
    row = tl.program_id(0).to(tl.int64)
    target = cache + tl.load(slots + row) * (LATENT + 2 * HALF)
    columns = tl.arange(0, LATENT)
    values = tl.load(kv + row * row_stride + columns).to(tl.float32)
    scales = tl.load(weight + columns).to(tl.float32)
    tl.store(target + columns, _normalize(values, scales, LATENT, eps).to(cache.dtype.element_ty))
    pair = tl.arange(0, HALF)
    source = kv + row * row_stride + LATENT + 2 * pair
    a = tl.load(source).to(tl.float32)
    b = tl.load(source + 1).to(tl.float32)
    cos = tl.load(cos_sin + (row * HALF + pair) * 2)
    sin = tl.load(cos_sin + (row * HALF + pair) * 2 + 1)
    # Explicit roundings: a fused multiply-add here would give other bits than `_rope_kernel`.
    ac, bs = _rounded_product(a, cos), _rounded_product(b, sin)
    bc, as_ = _rounded_product(b, cos), _rounded_product(a, sin)
    tl.store(target + LATENT + 2 * pair, (ac - bs).to(cache.dtype.element_ty))
    tl.store(target + LATENT + 2 * pair + 1, (bc + as_).to(cache.dtype.element_ty))


@triton.jit
def _rounded_product(a, b):
    """a * b as a value of its own: an fma with a zero addend can't be fused again."""
    return tl.fma(a, b, tl.zeros_like(a))
