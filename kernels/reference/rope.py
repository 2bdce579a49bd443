"""Rotary position embedding over interleaved pairs, as DeepSeek lays them out."""

from functools import cache

import torch
from torch import Tensor

__all__ = ["apply_rope"]


def apply_rope(x: Tensor, cos_sin: Tensor) -> Tensor:
    """Rotate each pair (x[2i], x[2i+1]) of `x` [rows, heads, width] by its row's `cos_sin` [rows, width / 2, 2] fp32.

    fp32 inside, x's dtype out, contiguous. Any scaling of the embedding is part of `cos_sin`.
    """
    rows, heads, width = x.shape
    if x.stride(0) % 2 or x.storage_offset() % 2:  # a pair must start where a complex number may
        x = x.clone(memory_format=torch.contiguous_format)
    pairs = torch.view_as_complex(x.float().reshape(rows, heads, width // 2, 2))
    cos, sin = torch.view_as_complex(cos_sin * _real_and_imaginary()).unsqueeze(2).unbind(0)
    # One complex product would round differently in the vector body of the library's loop (no FMA) and in its scalar
    # tail (FMA), so a row's bits would depend on its place. A factor whose other half is zero leaves nothing to fuse.
    rotated = torch.view_as_real((pairs * cos).add_(pairs * sin))
    return rotated.view(rows, heads, width).to(x.dtype)


@cache
def _real_and_imaginary() -> Tensor:
    """[2, 1, 1, 2]: keeps the cosines as real numbers, or the sines as imaginary ones."""
    return torch.tensor([[1.0, 0.0], [0.0, 1.0]]).view(2, 1, 1, 2)
