"""Greenlets that run one program after another: a new one costs more than all else that starting a program takes."""

import threading
from collections.abc import Callable
from typing import Any

from greenlet import getcurrent, greenlet  # type: ignore[import-untyped]

__all__ = ["idle_worker"]

_MOST_IDLE = 256


class _Idle(threading.local):
    def __init__(self) -> None:
        self.workers: list[Any] = []


_idle = _Idle()


def idle_worker() -> Any:
    """A greenlet of this thread. Switched to with a body, it runs that, switches to its parent and is idle again."""
    return _idle.workers.pop() if _idle.workers else greenlet(_work)


def _work(body: Callable[[], None]) -> None:
    me = getcurrent()
    while True:
        body()
        me.gr_context = None
        if len(_idle.workers) >= _MOST_IDLE:
            return
        _idle.workers.append(me)
        body = me.parent.switch()
