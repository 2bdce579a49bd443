"""The automaton of a regular language, built up to a limit: before an engine builds one that might be huge."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from .character_ranges import OpaqueSet, Ranges, code_points
from .regex_classes import CharacterSet
from .regex_nodes import Alternation, Anchor, Concatenation, Node, Repeat

__all__ = ["State", "TooManyStates", "build_states", "count_states", "is_nullable", "sets", "unused_character"]

_POSITIONS_PER_STATE = 32  # a pattern much larger than its automaton is not worth the count


class TooManyStates(Exception):
    """There are more than were to be counted."""


@dataclass
class _Automaton:
    """Thompson's: `free[s]` are reached without a character, `edges[s]` by one out of the ranges."""

    limit: int
    free: list[list[int]] = field(default_factory=list)
    edges: list[tuple[Ranges, int] | None] = field(default_factory=list)

    def state(self) -> int:
        if len(self.free) > self.limit:
            raise TooManyStates
        self.free.append([])
        self.edges.append(None)
        return len(self.free) - 1

    def add(self, node: Node, start: int) -> int:
        """Adds `node` behind the state `start`; the state in which it ends."""
        if isinstance(node, CharacterSet):
            end = self.state()
            self.free[start].append(between := self.state())
            ranges = code_points(node)
            if not ranges:
                raise OpaqueSet("a class without characters")
            self.edges[between] = (ranges, end)
            return end
        if isinstance(node, Anchor):
            return start
        if isinstance(node, Concatenation):
            for part in node.parts:
                start = self.add(part, start)
            return start
        if isinstance(node, Alternation):
            end = self.state()
            for option in node.options:
                self.free[start].append(begin := self.state())
                self.free[self.add(option, begin)].append(end)
            return end
        return self.repeat(node, start)

    def repeat(self, node: Repeat, start: int) -> int:
        for _ in range(node.minimum):
            start = self.add(node.body, start)
        end = self.state()
        for _ in range((node.maximum or 0) - node.minimum):
            self.free[start].append(end)
            start = self.add(node.body, start)
        if node.maximum is None:
            self.free[start].append(loop := self.state())
            start = loop
            self.free[self.add(node.body, loop)].append(loop)
        self.free[start].append(end)
        return end

    def closure(self, states: set[int]) -> frozenset[int]:
        pending, found = list(states), set(states)
        while pending:
            for target in self.free[pending.pop()]:
                if target not in found:
                    found.add(target)
                    pending.append(target)
        return frozenset(state for state in found if self.edges[state] is not None or not self.free[state])


@dataclass
class State:
    """Of a deterministic automaton: whether a text may end here, and which characters lead to which state."""

    accepting: bool
    moves: dict[int, list[tuple[int, int]]] = field(default_factory=dict)


def count_states(node: Node, limit: int, *, anywhere: bool = False) -> int:
    """How many states `build_states` gives."""
    return len(build_states(node, limit, anywhere=anywhere))


def build_states(node: Node, limit: int, *, anywhere: bool = False) -> list[State]:
    """The deterministic automaton, by characters, that reads texts of `node`; it begins in the first state.

    `anywhere`: the one that finds them behind any other text, which some engines build as well.

    Raises:
        TooManyStates: there are more than `limit`.
        OpaqueSet: a set of characters isn't known by its ranges.
    """
    automaton = _Automaton(_POSITIONS_PER_STATE * limit + 64)
    begin = automaton.state()
    end = automaton.add(node, begin)
    atoms = sorted({atom for edge in automaton.edges if edge for low, high in edge[0] for atom in (low, high + 1)})
    subsets = [automaton.closure({begin})]
    numbers = {subsets[0]: 0}
    states: list[State] = []
    number = 0
    while number < len(subsets):
        states.append(State(end in subsets[number]))
        for low, following in zip(atoms, atoms[1:], strict=False):
            targets = {target for edge in subsets[number] for target in _step(automaton, edge, low)}
            reached = automaton.closure(targets | ({begin} if anywhere else set()))
            if not reached:
                continue
            if reached not in numbers:
                if len(numbers) == limit:
                    raise TooManyStates
                numbers[reached] = len(subsets)
                subsets.append(reached)
            _add_range(states[number].moves.setdefault(numbers[reached], []), low, following - 1)
        number += 1
    return states


def _add_range(ranges: list[tuple[int, int]], low: int, high: int) -> None:
    if ranges and ranges[-1][1] == low - 1:
        ranges[-1] = (ranges[-1][0], high)
    else:
        ranges.append((low, high))


def _step(automaton: _Automaton, state: int, code_point: int) -> tuple[int, ...]:
    edge = automaton.edges[state]
    if edge is None or not any(low <= code_point <= high for low, high in edge[0]):
        return ()
    return (edge[1],)


def is_nullable(node: Node) -> bool:
    """Whether the empty text is one of `node`."""
    if isinstance(node, CharacterSet):
        return False
    if isinstance(node, Concatenation):
        return all(map(is_nullable, node.parts))
    if isinstance(node, Alternation):
        return any(map(is_nullable, node.options))
    return isinstance(node, Anchor) or node.minimum == 0 or is_nullable(node.body)


def unused_character(node: Node) -> str:
    """An ASCII character that no text of `node` holds; NUL if there is none."""
    used = [pair for ranges in sets(node) for pair in ranges]
    return next((chr(c) for c in range(128) if not any(low <= c <= high for low, high in used)), "\0")


def sets(node: Node) -> Iterator[Ranges]:
    if isinstance(node, CharacterSet):
        yield code_points(node)
    elif isinstance(node, Repeat):
        yield from sets(node.body)
    elif not isinstance(node, Anchor):
        for part in node.parts if isinstance(node, Concatenation) else node.options:
            yield from sets(part)
