"""Finds stop strings in a stream, and lets no part of one through."""

from collections import deque
from collections.abc import Iterable

__all__ = ["StopStrings"]


class StopStrings:
    """Text goes in as it is generated and comes out up to the first stop string.

    The match that ends first wins; of those that end at the same place, the longest. Text is held back only while it
    may be the beginning of a stop string. However the text is cut into pushes, the pieces join to the same text and the
    same string is hit. A character costs the same however long the text and however many the strings (Aho and Corasick,
    "Efficient string matching", 1975).
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self._root = _build(stops)
        self._state = self._root
        self._held = ""
        self._hit: str | None = None

    def push(self, text: str) -> tuple[str, str | None]:
        """The text that is certain to stay, and the stop string that `text` completes, or None.

        What follows a stop string is dropped. After a hit nothing may be pushed.
        """
        assert self._hit is None, "pushed text after a stop string"
        if not self._root.children:
            return text, None
        state = self._state
        for end, character in enumerate(text, start=1):
            state = state.step(character)
            if state.stop is not None:
                self._hit = state.stop
                before = self._held + text[:end]
                self._held = ""
                return before[: len(before) - len(state.stop)], state.stop
        self._state = state
        text = self._held + text
        sure = len(text) - state.depth
        self._held = text[sure:]
        return text[:sure], None

    def finish(self) -> str:
        """The text still held back, when nothing more will come."""
        held, self._held, self._state = self._held, "", self._root
        return held


class _State:
    """A beginning of some stop strings: the longest that the text so far ends with.

    `fallback`: the state of the longest shorter one. `stop`: the longest stop string that ends here.
    """

    __slots__ = ("children", "depth", "fallback", "stop")

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.children: dict[str, _State] = {}
        self.fallback: _State | None = None
        self.stop: str | None = None

    def step(self, character: str) -> "_State":
        state: _State | None = self
        while state is not None:
            following = state.children.get(character)
            if following is not None:
                return following
            last, state = state, state.fallback
        return last


def _build(stops: Iterable[str]) -> _State:
    root = _State(0)
    for stop in stops:
        assert stop, "a stop string is empty"
        state = root
        for character in stop:
            state = state.children.setdefault(character, _State(state.depth + 1))
        state.stop = stop
    waiting = deque([root])
    while waiting:  # shallow states first: a fallback is shallower than its state
        state = waiting.popleft()
        for character, child in state.children.items():
            child.fallback = root if state.fallback is None else state.fallback.step(character)
            child.stop = child.stop or child.fallback.stop
            waiting.append(child)
    return root
