"""Root-mean-square normalisation on the GPU: one program a row, one order of summation for a width."""
# mypy: allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["add_rms_norm", "rms_norm", "warps_for"]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`x` [rows, width] / sqrt(mean(x²) + eps) · `weight` [width]; fp32 inside, x's dtype out. Rows are independent."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(x, x, weight, eps, out, out, has_residual=False)
    return out


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(rms_norm(s), s) for s = x + residual, rounded to x's dtype first. x and residual [rows, width]."""
    assert residual.shape == x.shape and residual.dtype == x.dtype
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = torch.empty_like(out)
    _launch(x, residual.contiguous(), weight, eps, out, total, has_residual=True)
    return out, total


def warps_for(width: int) -> int:
    """Warps of a program that holds one row of this width. Fixed by the width alone, as the order of summation is."""
    padded: int = triton.next_power_of_2(width)
    return max(1, min(16, padded // 512))


def _launch(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, out: Tensor, total: Tensor, *, has_residual: bool
) -> None:
    rows, width = x.shape
    if rows:
        _rms_norm_kernel[(rows,)](
            x.contiguous(), residual, weight, out, total, width, eps,
            BLOCK=triton.next_power_of_2(width), HAS_RESIDUAL=has_residual, num_warps=warps_for(width),
        )  # fmt: skip


@triton.jit
def _rms_norm_kernel(x, residual, weight, out, total, width, eps, BLOCK: tl.constexpr, HAS_RESIDUAL: tl.constexpr):
    """One row."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < width
    values = tl.load(x + row * width + columns, mask=mask, other=0.0).to(tl.float32)
    scales = tl.load(weight + columns, mask=mask, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        values += tl.load(residual + row * width + columns, mask=mask, other=0.0).to(tl.float32)
        rounded = values.to(out.dtype.element_ty)
        tl.store(total + row * width + columns, rounded, mask=mask)
        values = rounded.to(tl.float32)
    normed = _normalize(values, scales, width, eps)
    tl.store(out + row * width + columns, normed.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _normalize(values, scales, width, eps):
    """One row of fp32 `values`, zero beyond its width."""
    mean = tl.sum(values * values, axis=0) / width
    return values * (1.0 / tl.sqrt(mean + eps)) * scales
