"""The input of a batch, read twice, and its output, which only ever grows by whole lines."""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from ...errors import RequestError

__all__ = ["InputFile", "OutputFile", "hash_beginning"]

_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file of rows as it was when the run began."""

    path: Path
    num_bytes: int
    num_rows: int
    sha256: str

    @classmethod
    def survey(cls, path: Path) -> Self:
        num_rows, digest = 0, hashlib.sha256()
        try:
            with path.open("rb") as file:
                for line in file:
                    digest.update(line)
                    num_rows += bool(line.strip())
                return cls(path, file.tell(), num_rows, digest.hexdigest())
        except OSError as error:
            raise RequestError("input", str(path), f"can't be read: {error}") from error

    def rows(self) -> Iterator[bytes]:
        """The lines that are not blank. Raises `RequestError` at the end if they are not those of the survey."""
        digest, left = hashlib.sha256(), self.num_bytes
        with self.path.open("rb") as file:
            while left and (line := file.readline(left)):
                digest.update(line)
                left -= len(line)
                if line.strip():
                    yield line
        if digest.hexdigest() != self.sha256:
            raise RequestError("input", str(self.path), "changed while it was read: its results can't be trusted")


def hash_beginning(path: Path, num_bytes: int) -> str | None:
    """SHA-256 of the first bytes of a file, if they end with a line; else None."""
    digest, block = hashlib.sha256(), b""
    with path.open("rb") as file:
        while num_bytes and (block := file.read(min(num_bytes, _BLOCK))):
            digest.update(block)
            num_bytes -= len(block)
    return digest.hexdigest() if not num_bytes and block.endswith(b"\n") else None


class OutputFile:
    """Locked while it is open. What a killed process left of a last line is cut when it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Unbuffered: a line is one call of the system, and in the file once `append` is past it.
        self._file = path.open("a+b", buffering=0)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise RequestError("output", str(path), "another process is writing it") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    @property
    def is_empty(self) -> bool:
        return os.fstat(self._file.fileno()).st_size == 0

    def clear(self) -> None:
        self._file.truncate(0)

    def cut_torn_line(self) -> None:
        """Drop what follows the last newline."""
        end = position = os.fstat(self._file.fileno()).st_size
        while position:
            start = max(position - _BLOCK, 0)
            newline = os.pread(self._file.fileno(), position - start, start).rfind(b"\n")
            if newline >= 0:
                position = start + newline + 1
                break
            position = start
        if position < end:
            self._file.truncate(position)

    def num_rows(self) -> int:
        """Rows that are written, without a torn one. A last line that no run has written as such: `RequestError`."""
        num_rows, last, torn = 0, b"", b""
        with self.path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    num_rows, last = num_rows + 1, line
                else:
                    torn = line
        begun = b'{"index": %d,' % num_rows
        if (num_rows and _index(last) != num_rows - 1) or torn[: len(begun)] != begun[: len(torn)]:
            message = f"its last line is not the result of row {num_rows if torn else num_rows - 1}; use --overwrite"
            raise RequestError("output", str(self.path), message)
        return num_rows

    def append(self, line: bytes) -> None:
        while line:  # a full disk, or a signal, can leave a part
            line = line[self._file.write(line) :]


def _index(line: bytes) -> object:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry.get("index") if isinstance(entry, dict) else None
