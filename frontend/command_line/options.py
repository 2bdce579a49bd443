"""From what was typed to what the engine takes."""

import os
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from ...errors import RequestError
from ...runtime.default_model import default_model_folder
from ...runtime.engine import Engine
from ...runtime.sampling_params import SamplingParams
from ..value_type import ValueType, value_type

__all__ = ["model_folder", "open_engine", "read_constraint", "read_sampling", "read_text"]


def model_folder(model: str | None) -> Path:
    return default_model_folder(progress=sys.stderr.isatty()) if model is None else Path(model)


def open_engine(args: Namespace, folder: Path) -> Engine:
    """A bar while it loads is for people alone."""
    return Engine(
        str(folder), dtype=args.dtype, num_threads=args.threads, kv_bytes=args.kv_bytes, progress=sys.stderr.isatty()
    )


def read_sampling(args: Namespace, **others: Any) -> SamplingParams:
    """What the options say; `others` are parameters that have no option."""
    return SamplingParams(
        temperature=args.temperature,
        top_p=args.top_p,
        top_k=args.top_k,
        min_p=args.min_p,
        max_tokens=args.max_tokens,
        stop=tuple(args.stop),
        seed=args.seed,
        **others,
    )


def read_constraint(args: Namespace) -> ValueType | None:
    if args.stop and any(given is not None for given in (args.schema, args.regex, args.ebnf, args.choices)):
        raise RequestError("stop", args.stop, "can't be combined with a constraint, which decides where the text ends")
    return value_type(
        schema=None if args.schema is None else _schema(args.schema),
        regex=args.regex,
        ebnf=None if args.ebnf is None else _file_or_text("ebnf", args.ebnf),
        choices=args.choices,
    )


def read_text(field: str, path: str | os.PathLike[str]) -> str:
    """The text of a file that the user named."""
    try:
        return Path(path).read_text("utf-8")
    except (OSError, ValueError) as error:
        raise RequestError(field, str(path), f"can't be read: {error}") from error


def _schema(given: str) -> str:
    text = _file_or_text("schema", given)
    if text is given and not text.lstrip().startswith(("{", "true", "false")):
        raise RequestError("schema", given, "is neither a file nor a JSON Schema, an object in JSON")
    return text


def _file_or_text(field: str, given: str) -> str:
    return read_text(field, given) if os.path.isfile(given) else given
