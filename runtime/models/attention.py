"""Latent attention in its absorbed form, the same in prefill and decode, and a grouped-query model as a case of it."""

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ...kernels.dispatch import AttentionPlan, PackedWeight, apply_rope, matmul, mla_attention, rms_norm

__all__ = ["Attention", "GroupedAttention", "LatentAttention", "StepContext"]

# DeepSeek's code builds the two latent norms with this default, whatever rms_norm_eps says.
_LATENT_NORM_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class StepContext:
    """What all layers of one step share."""

    cos_sin: Tensor  # fp32 [rows, pairs, 2]
    slots: Tensor  # int64 [rows]
    plan: AttentionPlan


class Attention(Protocol):
    def forward(self, x: Tensor, residual: Tensor, cache: Tensor, step: StepContext) -> Tensor:
        """Attention of normalised rows `x` plus `residual`, both [rows, hidden]; their cache rows are written first.

        `cache` [pages, page_size, latent + rotary key] is one layer's.
        """
        ...


@dataclass(frozen=True)
class LatentAttention:
    """DeepSeek's attention (arXiv 2405.04434, section 2.1), with the key up-projection absorbed into the query and the
    value up-projection applied after the weighted sum. The latent is normalised before it is cached, the rotary key is
    rotated before, so neither is touched again.

    Rows of the query projection are ordered [all heads without rotation | all heads' rotary parts].
    """

    down: PackedWeight  # hidden -> [query latent, or all queries | rotary key | latent]
    query_norm: Tensor | None
    query_up: PackedWeight | None  # query latent -> all queries; None: `down` gives the queries
    latent_norm: Tensor
    absorb_key: tuple[PackedWeight, ...]  # a head: query without rotation -> latent
    absorb_value: tuple[PackedWeight, ...]  # a head: latent -> value
    output: PackedWeight
    num_heads: int
    nope_dim: int
    rope_dim: int
    latent_dim: int
    scale: float

    def forward(self, x: Tensor, residual: Tensor, cache: Tensor, step: StepContext) -> Tensor:
        nope, rotary, latent = self._project(x)
        turned = apply_rope(rotary.view(-1, self.num_heads + 1, self.rope_dim), step.cos_sin)
        query_rope, key_rope = turned.split((self.num_heads, 1), 1)
        latent = rms_norm(latent, self.latent_norm, _LATENT_NORM_EPS)
        row = torch.cat((latent, key_rope.squeeze(1)), 1)
        cache.view(-1, row.shape[1]).index_copy_(0, step.slots, row)
        q = self._absorbed(nope, query_rope)
        mixed = mla_attention(q, cache, step.plan, scale=self.scale, latent_dim=self.latent_dim)
        by_head = mixed.transpose(0, 1).contiguous().unbind(0)
        values = [matmul(rows, weight) for rows, weight in zip(by_head, self.absorb_value, strict=True)]
        return matmul(torch.cat(values, 1), self.output, residual=residual)

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries without rotation, all that will be rotated (queries, then the key), and the latent."""
        heads, rope_dim, latent_dim = self.num_heads, self.rope_dim, self.latent_dim
        nope_width = heads * self.nope_dim
        down = matmul(x, self.down)
        if self.query_up is None or self.query_norm is None:
            nope, rotary, latent = down.split((nope_width, (heads + 1) * rope_dim, latent_dim), 1)
            return nope, rotary, latent
        compressed, key_rope, latent = down.split((self.query_up.shape[1], rope_dim, latent_dim), 1)
        query = matmul(rms_norm(compressed, self.query_norm, _LATENT_NORM_EPS), self.query_up)
        return query[:, :nope_width], torch.cat((query[:, nope_width:], key_rope), 1), latent

    def _absorbed(self, nope: Tensor, query_rope: Tensor) -> Tensor:
        """[rows, heads, latent + rope]: each head's query taken to the latent, then its rotary part."""
        if self.nope_dim == 0:
            return F.pad(query_rope, (self.latent_dim, 0))
        by_head = nope.reshape(-1, self.num_heads, self.nope_dim).transpose(0, 1).contiguous().unbind(0)
        pieces: list[Tensor] = []
        for rows, weight, turned in zip(by_head, self.absorb_key, query_rope.unbind(1), strict=True):
            pieces += (matmul(rows, weight), turned)
        return torch.cat(pieces, 1).view(-1, self.num_heads, self.latent_dim + self.rope_dim)


@dataclass(frozen=True)
class GroupedAttention:
    """Grouped-query attention in latent form: the latent is all groups' values, the rotary key all groups' keys.

    Key absorption has nothing to do (no part of a query goes without rotation), and the value up-projection of a head
    picks its group, so neither costs a product.
    """

    project: PackedWeight  # hidden -> [queries | keys | values]
    output: PackedWeight
    num_heads: int
    num_groups: int
    head_dim: int
    scale: float

    def forward(self, x: Tensor, residual: Tensor, cache: Tensor, step: StepContext) -> Tensor:
        heads, groups, head_dim = self.num_heads, self.num_groups, self.head_dim
        width = groups * head_dim
        turned, values = matmul(x, self.project).split(((heads + groups) * head_dim, width), 1)
        turned = apply_rope(turned.view(-1, heads + groups, head_dim), step.cos_sin)
        query, keys = turned.split((heads, groups), 1)
        cache.view(-1, 2 * width).index_copy_(0, step.slots, torch.cat((values, keys.flatten(1)), 1))
        if groups == 1:  # one shared key is a latent model's layout: the query's latent part is zero
            query = F.pad(query, (width, 0))
        mixed = mla_attention(query, cache, step.plan, scale=self.scale, latent_dim=width, num_groups=groups)
        return matmul(mixed.flatten(1), self.output, residual=residual)
