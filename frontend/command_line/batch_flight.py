"""Rows in flight: many run at once, their results leave in the order in which they came."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import Any

from ...errors import ConstraintError, DrawloomError, EngineError, RequestError
from ...runtime.engine import Engine
from ...runtime.request import Result, resolver
from .batch_row import RowReader, RowRequest, error_entry, read_fields, result_entry, row_label

__all__ = ["run_rows"]


def run_rows(
    engine: Engine, reader: RowReader, rows: Iterable[tuple[int, bytes]], *, at_most: int
) -> Iterator[dict[str, Any]]:
    """The entry of each row, in order. At most `at_most` rows are held; a row that can't run has an error for entry."""
    flying: deque[_Row] = deque()
    for index, line in rows:
        flying.append(_Row(engine, reader, index, line))
        while flying and (len(flying) >= at_most or flying[0].is_done):
            yield flying.popleft().entry()
    while flying:
        yield flying.popleft().entry()


class _Row:
    def __init__(self, engine: Engine, reader: RowReader, index: int, line: bytes) -> None:
        self._engine = engine
        self._label: dict[str, Any] = {"index": index}
        self._fields: dict[str, Any] = {}
        self._refusal: DrawloomError | None = None
        try:
            self._fields = read_fields(line)
            self._label = row_label(index, self._fields)
            self._request = reader.request(index, self._fields)
            self._future = _submit(engine, self._request)
        except (RequestError, ConstraintError) as error:
            self._refusal = error

    @property
    def is_done(self) -> bool:
        return self._refusal is not None or self._future.done()

    def entry(self) -> dict[str, Any]:
        """Waits until there is one."""
        if self._refusal is not None:
            return self._label | error_entry(self._refusal, self._fields)
        try:
            return self._label | result_entry(self._request, self._result())
        except DrawloomError as error:
            # A row may be at fault, an engine that has stopped may not: its rows are for the next run of the command.
            self._engine.flush_cache()
            return self._label | error_entry(error, self._fields)

    def _result(self) -> Result:
        try:
            return self._future.result()
        except EngineError:  # a step that fails takes all of its rows along, and at most one of them is at fault
            return _submit(self._engine, self._request).result()


def _submit(engine: Engine, request: RowRequest) -> "Future[Result]":
    future: Future[Result] = Future()
    constraint = request.wanted.constraint if request.wanted is not None else None
    engine.submit(request.prompt_ids, request.sampling, constraint, on_delta=resolver(future))
    return future
