"""`drawloom batch`: a file of rows through the engine, many at once; given again after a kill, it goes on."""

import hashlib
import os
import sys
import time
from argparse import Namespace
from itertools import islice
from pathlib import Path
from typing import Any

from tqdm import tqdm  # type: ignore[import-untyped]

from ...errors import RequestError
from ...grammar import GrammarCompiler
from ...runtime.engine import Engine
from ...runtime.model_config import ModelConfig
from .batch_files import InputFile, OutputFile
from .batch_flight import run_rows
from .batch_record import Wish, record_path
from .batch_row import RowReader, output_line
from .options import model_folder, open_engine, read_constraint, read_sampling

__all__ = ["run"]

_OPTIONS = ("temperature", "top_p", "top_k", "min_p", "max_tokens", "stop")
_TEXT_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")


def run(args: Namespace) -> int:
    if args.in_flight < 1:
        raise RequestError("in_flight", args.in_flight, "must be at least 1")
    sampling, wanted = read_sampling(args, logprobs=False), read_constraint(args)
    source, folder = InputFile.survey(Path(args.input)), model_folder(args.model)
    if os.path.exists(args.output) and os.path.samefile(args.input, args.output):
        raise RequestError("output", args.output, "is the input")
    options: dict[str, Any] = {name: getattr(args, name) for name in _OPTIONS}
    options |= {"raw": args.raw, "constraint": None if wanted is None else repr(wanted.constraint)}
    with OutputFile(Path(args.output)) as output:
        wish = Wish(options, args.seed, source)
        earlier = None if args.overwrite else wish.earlier_run(output)
        num_done = 0 if args.overwrite else output.num_rows()
        with open_engine(args, folder) as engine:
            record = wish.record(earlier, _environment(engine, folder), output)
            if wanted is not None:  # one that can't be enforced is one error, not one for each row
                GrammarCompiler(engine.tokenizer.vocabulary).compile(wanted.constraint)
            # Nothing of the file is touched before all that could refuse the command has agreed to it.
            if args.overwrite:
                output.clear()
            output.cut_torn_line()
            record.write(record_path(output.path))
            reader = RowReader(engine.tokenizer, sampling, wanted, args.raw, record.seed)
            progress = _Progress(num_done, source.num_rows, record.seed)
            with progress:
                rows = islice(enumerate(source.rows()), num_done, None)
                for entry in run_rows(engine, reader, rows, at_most=args.in_flight):
                    output.append(output_line(entry))
                    progress.add(entry)
    return 0


def _environment(engine: Engine, folder: Path) -> dict[str, Any]:
    digest = hashlib.sha256()
    for name in _TEXT_FILES:
        if (folder / name).is_file():
            digest.update(f"\0{name}\0".encode() + (folder / name).read_bytes())
    cached = engine.metrics()["pages.total"] * engine.config.page_size
    return {
        "fingerprint": engine.fingerprint,
        "tokenizer": digest.hexdigest(),
        "most tokens of a row": min(ModelConfig.from_folder(folder).max_positions, cached),
    }


class _Progress:
    """A bar while somebody watches, and one line at the end, also when that comes early."""

    def __init__(self, num_done: int, num_rows: int, seed: int) -> None:
        self._num_done, self._num_rows, self._seed = num_done, num_rows, seed
        self._num_new = self._num_errors = self._num_tokens = 0
        self._start = time.perf_counter()
        self._bar = tqdm(total=num_rows, initial=num_done, unit="row", disable=not sys.stderr.isatty())

    def add(self, entry: dict[str, Any]) -> None:
        self._num_new += 1
        self._num_errors += "error" in entry
        self._num_tokens += entry.get("tokens", 0)
        self._bar.update()

    def __enter__(self) -> None:
        if self._num_done:
            print(f"{self._num_done} of {self._num_rows} rows are there already", file=sys.stderr)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._bar.close()
        seconds = time.perf_counter() - self._start
        print(
            f"seed={self._seed} rows={self._num_done + self._num_new}/{self._num_rows} new={self._num_new} "
            f"errors={self._num_errors} tokens={self._num_tokens} tokens/s={self._num_tokens / seconds:.1f}",
            file=sys.stderr,
        )
        if kind is not None and not issubclass(kind, RequestError):
            print("not finished: the same command goes on from here", file=sys.stderr)
