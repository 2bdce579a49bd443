"""Where programs wait: each is a greenlet of the calling thread, and the hub runs whichever can go on.

Nothing polls. A program that reads what is not there yet parks its greenlet; the thread sleeps until a backend posts
that a request has news, lets the request take it in, and resumes the programs that waited for it.
"""

import threading
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from queue import SimpleQueue
from typing import Any, Protocol

from greenlet import getcurrent  # type: ignore[import-untyped]

from ..errors import EngineError
from .workers import idle_worker

__all__ = ["Hub", "Operation", "Waiters", "current_hub"]

_local = threading.local()


class Operation(Protocol):
    """Something in flight at a backend."""

    def advance(self) -> None:
        """Take in what has arrived. Called on the hub's thread, perhaps with nothing new."""


class Abortable(Protocol):
    def abort(self, cause: BaseException) -> None: ...


class Hub:
    """Belongs to the thread that drives it; only `post` may be called from others."""

    def __init__(self) -> None:
        self.current: Any = None  # the greenlet of the program that runs now
        self.live: set[Abortable] = set()
        self.num_in_flight = 0
        self.interruption: BaseException | None = None
        self._thread = threading.get_ident()
        self._ready: deque[Any] = deque()
        self._starting: deque[tuple[Callable[[], None], Context]] = deque()
        self._inbox: SimpleQueue[Operation] = SimpleQueue()

    @property
    def is_here(self) -> bool:
        return threading.get_ident() == self._thread

    def post(self, operation: Operation) -> None:
        self._inbox.put(operation)

    def start(self, body: Callable[[], None]) -> None:
        """Run `body`, which must not raise, in a greenlet when the hub comes to it."""
        self._starting.append((body, copy_context()))

    def resume(self, parked: Any) -> None:
        self._ready.append(parked)

    def forget(self, parked: Any) -> None:
        """It was resumed and then unwound before its turn came."""
        if parked in self._ready:
            self._ready.remove(parked)

    def drive(self, until: Callable[[], bool]) -> None:
        """Run programs and take in news until `until()` holds, sleeping while there is neither.

        On another thread than its own: EngineError.
        Whatever interrupts the thread (Ctrl-C above all) first aborts every live program, requests in flight included.
        """
        if not self.is_here:
            raise EngineError("a program is read on another thread than the one that called run")
        try:
            while not until():
                self._step()
        except BaseException as error:
            for program in list(self.live):
                program.abort(error)
            raise

    def _step(self) -> None:
        if self._ready:
            self._switch_to(self._ready.popleft())
        elif self._starting:
            body, context = self._starting.popleft()
            worker = idle_worker()
            worker.gr_context = context
            self._switch_to(worker, body)
        elif self.num_in_flight:
            self._inbox.get().advance()
        else:
            raise EngineError("a program waits for something that nothing in flight can bring")
        if self.interruption is not None:
            raise self.interruption

    def _switch_to(self, resumed: Any, *body: Callable[[], None]) -> None:
        outer = getattr(_local, "hub", None), self.current
        _local.hub, self.current = self, resumed
        try:
            resumed.parent = getcurrent()
            resumed.switch(*body)
        finally:
            _local.hub, self.current = outer


def current_hub() -> Hub | None:
    """The hub of the program that is calling, if it is a program that calls."""
    hub: Hub | None = getattr(_local, "hub", None)
    return hub if hub is not None and hub.current is getcurrent() else None


class Waiters:
    """The greenlets that wait for news of one program."""

    __slots__ = ("_hub", "_parked")

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._parked: list[tuple[Callable[[], bool], Any]] = []

    def wait(self, until: Callable[[], bool]) -> None:
        """Return once `until()` holds. In a program of this hub others run meanwhile; elsewhere the hub is driven."""
        if until():
            return
        me = getcurrent()
        if self._hub.current is me:
            self._parked.append((until, me))
            try:
                me.parent.switch()
            except BaseException:  # the program is unwound while it waits
                self._parked = [entry for entry in self._parked if entry[1] is not me]
                self._hub.forget(me)
                raise
        else:
            self._hub.drive(until)

    def notify(self) -> None:
        if self._parked:
            waiting, self._parked = self._parked, []
            for until, parked in waiting:
                if until():
                    self._hub.resume(parked)
                else:
                    self._parked.append((until, parked))
