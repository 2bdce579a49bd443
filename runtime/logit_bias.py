"""The immutable mapping that `SamplingParams.logit_bias` becomes."""

from collections.abc import Iterator, Mapping

__all__ = ["LogitBias"]


class LogitBias(Mapping[int, float]):
    """Token id -> what is added to its logit. Hashable; equal to any mapping with the same items."""

    __slots__ = ("_biases", "_hash")

    def __init__(self, biases: Mapping[int, float]) -> None:
        self._biases = dict(sorted(biases.items()))
        self._hash = hash(tuple(self._biases.items()))

    def __getitem__(self, token_id: int) -> float:
        return self._biases[token_id]

    def __iter__(self) -> Iterator[int]:
        return iter(self._biases)

    def __len__(self) -> int:
        return len(self._biases)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return repr(self._biases)
