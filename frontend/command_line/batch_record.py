"""What a batch must know of its own beginning to go on with it: a small file beside the output."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from ... import __version__
from ...errors import RequestError
from ...runtime.seeds import draw_seed
from .batch_files import InputFile, OutputFile, hash_beginning

__all__ = ["RunRecord", "Wish", "record_path"]


def record_path(output: Path) -> Path:
    return output.with_name(output.name + ".run")


@dataclass(frozen=True, slots=True)
class RunRecord:
    """Everything on which the bytes of an output depend."""

    seed: int
    options: Mapping[str, Any]
    input_bytes: int
    input_sha256: str
    environment: Mapping[str, Any]
    version: str = __version__

    @classmethod
    def read(cls, path: Path) -> Self | None:
        try:
            return cls(**json.loads(path.read_text("utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise RequestError(
                "output", str(path), f"is no record of a run ({error}); --overwrite begins anew"
            ) from error

    def write(self, path: Path) -> None:
        """All of it or nothing, whenever the process is killed."""
        new = path.with_name(path.name + ".new")
        with new.open("w", encoding="utf-8") as file:
            json.dump(asdict(self), file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)


@dataclass(frozen=True, slots=True)
class Wish:
    """What a command asks: to begin a run, or to go on with one that it agrees with."""

    options: Mapping[str, Any]
    seed: int | None
    source: InputFile

    def earlier_run(self, output: OutputFile) -> RunRecord | None:
        """The run that `output` is of. None: a new one begins. `RequestError` where that would lose something."""
        path = record_path(output.path)
        earlier = RunRecord.read(path)
        if earlier is None:
            if not output.is_empty:
                message = f"holds something else than a run's results: there is no {path.name}; --overwrite begins anew"
                raise RequestError("output", str(output.path), message)
            return None
        if output.is_empty:
            return None if any(self._differences(earlier)) else earlier
        _refuse(output, self._differences(earlier))
        return earlier

    def record(self, earlier: RunRecord | None, environment: Mapping[str, Any], output: OutputFile) -> RunRecord:
        """The record to keep from now on. `environment`: what the machine and the model have a say in."""
        if earlier is not None and not output.is_empty:
            _refuse(output, _changes(earlier.environment, environment))
        known = self.seed if earlier is None else earlier.seed
        seed = draw_seed() if known is None else known
        return RunRecord(seed, self.options, self.source.num_bytes, self.source.sha256, environment)

    def _differences(self, earlier: RunRecord) -> Iterator[str]:
        if earlier.version != __version__:
            yield f"Drawloom was {earlier.version}, now it is {__version__}"
        if self.seed is not None and self.seed != earlier.seed:
            yield f"seed was {earlier.seed}, now it is {self.seed}"
        yield from _changes(earlier.options, self.options)
        source, begun = self.source, (earlier.input_bytes, earlier.input_sha256)
        if (source.num_bytes, source.sha256) == begun:
            return
        longer = source.num_bytes > earlier.input_bytes
        if not longer or hash_beginning(source.path, earlier.input_bytes) != earlier.input_sha256:
            yield f"the input {source.path} has changed, and not only by rows added at its end"


def _refuse(output: OutputFile, differences: Iterator[str]) -> None:
    found = "; ".join(differences)
    if found:
        message = f"belongs to a run that this command does not go on with: {found}. --overwrite begins anew"
        raise RequestError("output", str(output.path), message)


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            yield f"{name} was {_shown(before.get(name))}, now it is {_shown(now.get(name))}"


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else text[:200] + "…"
