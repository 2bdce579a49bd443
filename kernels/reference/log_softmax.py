"""Log-softmax of rows."""

import torch
from torch import Tensor

__all__ = ["log_softmax"]


def log_softmax(logits: Tensor) -> Tensor:
    """log(softmax) of `logits` fp32 [rows, width] along each row, fp32."""
    return torch.log_softmax(logits, dim=-1)
