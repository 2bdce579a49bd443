"""What compilers keep: compiled things up to a number of bytes, each compiled once however many threads ask."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["CacheStats", "CompileCache"]

Value = TypeVar("Value")


@dataclass(frozen=True)
class CacheStats:
    """Counters since the start, and what is kept now.

    hits: calls that compiled nothing, those that waited for another thread's compilation included. misses: the others,
    those that failed included. evictions: entries that made room. oversized: compiled, but larger than the whole cache
    and so not kept. entries, bytes: kept now; the bytes are estimates.
    """

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    oversized: int = 0
    entries: int = 0
    bytes: int = 0


class _Abandoned(Exception):
    """The thread that compiled was interrupted; whoever waits for it tries again."""


class CompileCache(Generic[Value]):
    """Values by key, the least recently used going first. Safe to share between threads; no failure is kept."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self._flights: dict[Hashable, Future[Value]] = {}
        self._counts = dict.fromkeys(("hits", "misses", "evictions", "oversized", "bytes"), 0)

    def get(self, key: Hashable, compile_: Callable[[], Value], num_bytes: Callable[[Value], int]) -> Value:
        """The value of `key`; made by `compile_` in one thread, for which others wait, where it isn't kept.

        What `compile_` raises, every waiting thread raises too.
        """
        while True:
            with self._lock:
                if key in self._entries:
                    self._counts["hits"] += 1
                    self._entries.move_to_end(key)
                    return self._entries[key][0]
                flight = self._flights.get(key)
                self._counts["misses" if flight is None else "hits"] += 1
                if flight is None:
                    flight = self._flights[key] = Future()
                    break
            try:
                return flight.result()
            except _Abandoned:
                with self._lock:
                    self._counts["hits"] -= 1
        return self._lead(key, flight, compile_, num_bytes)

    def _lead(
        self, key: Hashable, flight: Future[Value], compile_: Callable[[], Value], num_bytes: Callable[[Value], int]
    ) -> Value:
        try:
            value = compile_()
            size = num_bytes(value)
        except BaseException as error:
            with self._lock:
                del self._flights[key]
            flight.set_exception(error if isinstance(error, Exception) else _Abandoned())
            raise
        with self._lock:
            del self._flights[key]
            self._keep(key, value, size)
        flight.set_result(value)
        return value

    def _keep(self, key: Hashable, value: Value, size: int) -> None:
        if size > self._max_bytes:
            self._counts["oversized"] += 1
            return
        self._entries[key] = (value, size)
        self._counts["bytes"] += size
        while self._counts["bytes"] > self._max_bytes:
            _, (_, freed) = self._entries.popitem(last=False)
            self._counts["bytes"] -= freed
            self._counts["evictions"] += 1

    def stats(self) -> CacheStats:
        with self._lock:
            return CacheStats(entries=len(self._entries), **self._counts)
