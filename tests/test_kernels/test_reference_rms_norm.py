"""Root-mean-square normalisation on the CPU."""

import pytest
import torch

from drawloom.kernels.reference.rms_norm import rms_norm

ROWS = (1, 2, 3, 7, 16, 17, 64, 100)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [16, 33, 576, 2048])
@pytest.mark.parametrize("strided", [False, True])
def test_a_row_has_the_same_bits_among_any_number_of_rows(width: int, dtype: torch.dtype, strided: bool) -> None:
    torch.manual_seed(width)
    x = (torch.randn(130, width + 7 * strided) * 3).to(dtype)[:, :width]
    weight = torch.randn(width).to(dtype)
    want = rms_norm(x, weight, 1e-5)
    assert want.dtype == dtype
    for rows in ROWS:
        for start in (0, 29):
            assert torch.equal(rms_norm(x[start : start + rows], weight, 1e-5), want[start : start + rows]), rows


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.bfloat16, 4e-3)])
def test_the_value_is_computed_in_fp32(dtype: torch.dtype, bound: float) -> None:
    torch.manual_seed(0)
    x, weight = (torch.randn(20, 512) * 40).to(dtype), torch.randn(512).to(dtype)
    exact = x.double() / (x.double().pow(2).mean(-1, keepdim=True) + 0.5).sqrt() * weight.double()
    assert ((rms_norm(x, weight, 0.5).double() - exact).abs() <= bound * exact.abs() + 1e-30).all()
