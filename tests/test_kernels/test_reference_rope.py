"""Rotary embedding on the CPU."""

import pytest
import torch

from drawloom.kernels.reference.rope import apply_rope

ROWS = (1, 2, 3, 7, 16, 17, 64, 100)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "width"), [(1, 2), (1, 10), (1, 64), (3, 6), (12, 64), (5, 48)])
def test_a_row_has_the_same_bits_among_any_number_of_rows(heads: int, width: int, dtype: torch.dtype) -> None:
    torch.manual_seed(width)
    x = torch.randn(130, heads * width + 5).to(dtype)[:, 5:].unflatten(1, (heads, width))
    cos_sin = torch.randn(130, width // 2, 2)
    want = apply_rope(x, cos_sin)
    assert want.dtype == dtype and want.is_contiguous()
    for rows in ROWS:
        for start in (0, 29):
            part = slice(start, start + rows)
            assert torch.equal(apply_rope(x[part], cos_sin[part]), want[part]), rows


def test_each_element_is_two_rounded_products_and_a_rounded_sum() -> None:
    torch.manual_seed(1)
    x, cos_sin = torch.randn(37, 3, 10), torch.randn(37, 5, 2)
    cos, sin = cos_sin[:, None, :, 0], cos_sin[:, None, :, 1]
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = apply_rope(x, cos_sin)
    assert torch.equal(turned[..., 0::2], even * cos - odd * sin)
    assert torch.equal(turned[..., 1::2], even * sin + odd * cos)


def test_scores_depend_on_the_distance_alone() -> None:
    torch.manual_seed(2)
    frequencies = torch.tensor([1.0, 0.1, 0.01])

    def at(position: int, vector: torch.Tensor) -> torch.Tensor:
        angles = position * frequencies
        return apply_rope(vector.view(1, 1, 6), torch.stack((angles.cos(), angles.sin()), -1)[None]).flatten()

    query, key = torch.randn(6), torch.randn(6)
    assert torch.allclose(at(12, query) @ at(7, key), at(5, query) @ at(0, key), atol=1e-5)
    assert not torch.allclose(at(12, query) @ at(7, key), at(6, query) @ at(0, key), atol=1e-2)
