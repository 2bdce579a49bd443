"""What every layer's latent attention needs to know of one step. No Triton here: the twin shares it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["BLOCK_TOKENS", "GROUP_LEAVES", "LEAF_TOKENS", "MlaPlan", "plan_mla"]

BLOCK_TOKENS = 64  # keys that share one update of the running maximum
LEAF_TOKENS = 256  # keys, at absolute positions, that are summed from zero
GROUP_LEAVES = 4  # leaves folded in order into a group, and groups into a section
_FEW_KEYS = 128 * LEAF_TOKENS


@dataclass(frozen=True, slots=True)
class MlaPlan:
    """Tensors on the device of the cache; built once a step by :func:`plan_mla`."""

    page_table: Tensor  # int32 [sequences, pages]: where 64-token blocks live
    sequences: Tensor  # int32 [rows]: the sequence of each query token
    visible: Tensor  # int32 [rows]: how many keys each query token sees
    tiles: Tensor  # int32 [tiles, 4]: sequence, first folded row (token * heads + head), end of the rows, keys seen
    first_rows: tuple[int, ...]  # of each tile
    block_rows: int  # of a tile
    num_folded_rows: int
    num_heads: int
    max_visible: int  # at least every entry of `visible`


def plan_mla(
    page_tables: Sequence[Sequence[int]],
    seq_lens: Sequence[int],
    query_lens: Sequence[int],
    *,
    num_heads: int,
    device: torch.device | str,
) -> MlaPlan:
    """Sequence i asks with its last `query_lens[i]` of `seq_lens[i]` tokens, which are stored in `page_tables[i]`."""
    # Tiles of 32 rows read the keys half as often, but tiles of 16 fill the device sooner.
    narrow_tiles = sum(-(-count * num_heads // 16) for count in query_lens)
    block_rows = 16 if num_heads * max(query_lens) <= 16 or narrow_tiles * max(seq_lens) <= _FEW_KEYS else 32
    sequences: list[int] = []
    visible: list[int] = []
    tiles: list[tuple[int, int, int, int]] = []
    for index, (seq_len, query_len) in enumerate(zip(seq_lens, query_lens, strict=True)):
        assert 0 < query_len <= seq_len
        first = len(sequences) * num_heads
        end = first + query_len * num_heads
        for row in range(first, end, block_rows):
            last_token = (min(row + block_rows, end) - 1 - first) // num_heads
            tiles.append((index, row, end, seq_len - query_len + 1 + last_token))
        sequences += [index] * query_len
        visible += range(seq_len - query_len + 1, seq_len + 1)
    width = max(len(pages) for pages in page_tables)
    padded = [list(pages) + [0] * (width - len(pages)) for pages in page_tables]

    def integers(values: object) -> Tensor:
        return torch.tensor(values, dtype=torch.int32).to(device)

    return MlaPlan(
        page_table=integers(padded),
        sequences=integers(sequences),
        visible=integers(visible),
        tiles=integers(tiles),
        first_rows=tuple(row for _, row, _, _ in tiles),
        block_rows=block_rows,
        num_folded_rows=len(sequences) * num_heads,
        num_heads=num_heads,
        max_visible=max(seq_lens),
    )
