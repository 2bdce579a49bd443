"""What one step will do: built whole by the scheduler, read by everyone else."""

from dataclasses import dataclass

from .sequence import Sequence

__all__ = ["Chunk", "PageCopy", "Plan"]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens [start, start + length) of a sequence are computed; `samples`: its last row gives the next token."""

    sequence: Sequence
    start: int
    length: int
    samples: bool

    @property
    def scored_rows(self) -> range:
        """Rows (indices into the chunk) whose logits score the prompt token after them."""
        first = self.sequence.score_start
        if first is None:
            return range(0)
        end = min(self.start + self.length, self.sequence.num_prompt - 1)
        return range(max(0, first - 1 - self.start), max(0, end - self.start))


@dataclass(frozen=True, slots=True)
class PageCopy:
    """Copy the first `num_tokens` rows of page `source` to page `target`, in every layer."""

    source: int
    target: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Plan:
    """`copies` run in order before the forward pass."""

    chunks: tuple[Chunk, ...]
    copies: tuple[PageCopy, ...]

    @property
    def num_tokens(self) -> int:
        return sum(chunk.length for chunk in self.chunks)

    @property
    def sampled(self) -> list[Sequence]:
        return [chunk.sequence for chunk in self.chunks if chunk.samples]
