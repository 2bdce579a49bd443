"""Plain latent attention over a paged cache, in fp32, one query token at a time."""

import torch
from torch import Tensor

from ..mla_plan import MlaPlan

__all__ = ["mla_decode"]


def mla_decode(q: Tensor, cache: Tensor, plan: MlaPlan, *, scale: float, latent_dim: int) -> Tensor:
    """Absorbed queries `q` [rows, heads, latent + rope] over `cache` [pages, page_size, latent + rope].

    Returns [rows, heads, latent_dim] in q's dtype.
    """
    out = q.new_empty((*q.shape[:2], latent_dim))
    table, visible = plan.page_table.long(), plan.visible.tolist()
    for row, sequence in enumerate(plan.sequences.tolist()):
        keys = cache[table[sequence]].flatten(0, 1)[: visible[row]].float()
        weights = torch.softmax(q[row].float() @ keys.t() * scale, dim=-1)
        out[row] = (weights @ keys[:, :latent_dim]).to(q.dtype)
    return out
