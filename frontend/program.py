"""One run of a program: its greenlet, its branches, and who waits for it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from greenlet import GreenletExit, getcurrent  # type: ignore[import-untyped]

from .backend import Backend, default_backend
from .branch import Branch
from .hub import Hub, Waiters

__all__ = ["Program", "finish_all"]


class Program:
    def __init__(
        self, hub: Hub, *, backend: Backend | None, seed: int, defaults: Mapping[str, Any], stream: bool
    ) -> None:
        self.hub = hub
        self.seed = seed
        self.waiters = Waiters(hub)
        self.error: BaseException | None = None
        self.returned: Any = None
        self._backend = backend
        self._has_ended = False  # its function, that is
        self._greenlet: Any = None
        self.main = Branch(
            "main",
            hub,
            seed=seed,
            backend=self.backend,
            defaults=defaults,
            watched=stream,
            has_news=self.waiters.notify,
        )

    def start(self, body: Callable[[], Any]) -> None:
        """Let the hub run `body` in a greenlet."""

        def run() -> None:
            if self._has_ended:  # aborted before it began
                return
            self._greenlet = getcurrent()
            try:
                self.returned = body()
                self.main.settle()
            except GreenletExit:
                if not self._has_ended:
                    raise  # not by `abort`: the greenlet itself is being taken down
            except BaseException as error:
                self._fail(error)
                if not isinstance(error, Exception):
                    self.hub.interruption = error
            self._has_ended = True
            self._greenlet = None
            self.waiters.notify()

        self.hub.live.add(self)
        self.hub.start(run)

    @property
    def is_current(self) -> bool:
        """Whether the program itself is asking, and has not been aborted."""
        return getcurrent() is self._greenlet and not self._has_ended

    @property
    def is_finished(self) -> bool:
        """Its function has ended and nothing is left to run."""
        return self._has_ended and self.main.is_idle

    def wait(self) -> None:
        """Wait until it is finished. What it raised is in `error`."""
        self.waiters.wait(lambda: self.is_finished)
        self.hub.live.discard(self)

    def abort(self, cause: BaseException) -> None:
        """Cancel its requests and unwind its function, wherever it waits. Another thread can't unwind it."""
        self.hub.live.discard(self)
        if self.is_finished:
            return
        self._fail(cause)
        self._has_ended = True
        if self._greenlet is not None and self._greenlet is not getcurrent() and self.hub.is_here:
            self._greenlet.parent = getcurrent()
            self._greenlet.throw(GreenletExit)
        self.waiters.notify()

    def _fail(self, error: BaseException) -> None:
        if self.error is None:
            self.error = error
        self.main.abort(error)

    def backend(self) -> Backend:
        """The default one is looked up when the first gen needs it, and kept."""
        if self._backend is None:
            self._backend = default_backend()
        return self._backend


def finish_all(programs: Sequence[Program]) -> None:
    """Wait for each of them. Whoever is interrupted while waiting ends them all."""
    try:
        for program in programs:
            program.wait()
    except BaseException as error:
        for program in programs:
            program.abort(error)
        raise
