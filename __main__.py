"""The command line: `drawloom generate | batch | chat | info`, also as `python -m drawloom`.

Here is what can be typed; `frontend/command_line` has what it does. Nothing heavy is loaded to answer `--help`.
"""

import argparse
import io
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

from . import __version__
from .errors import ConstraintError, DrawloomError, RequestError
from .runtime.sampling_params import SamplingParams

__all__ = ["main"]

INTERRUPTED, PIPE_CLOSED = 128 + signal.SIGINT, 128 + signal.SIGPIPE

DESCRIPTION = "Text and structured data from a language model, on this machine."
EPILOG = """\
Each command has a --help of its own, with examples. Exit status: 0; 1 where something failed; 2 for a mistake in what
was asked; 130 after Ctrl-C. DRAWLOOM_CACHE names the folder in which the default model is kept.
"""
GENERATE = """\
examples:
  drawloom generate "Name three rivers."
  drawloom generate --file mail.txt --schema invoice.schema.json --temperature 0 > invoice.json
  git diff | drawloom generate - --max-tokens 60
  drawloom generate "Is water wet?" --choice yes --choice no --seed 7
  drawloom generate --raw "Once upon a time" --stop "The end"

The text goes to stdout as it is written, and nothing else does. Seed, finish reason and speed go to stderr at the end;
the same --seed gives the same text. With a constraint, a text that --max-tokens cuts before it is whole is an error.
"""
BATCH = """\
Each line of IN is a JSON object:
  prompt      text, or instead of it
  messages    a conversation: [{"role": "user", "content": "..."}, ...]
  id          optional, a string or number that is repeated in the result
  schema | regex | ebnf | choices             optional: what the text must be
  temperature top_p top_k min_p max_tokens min_tokens stop stop_token_ids ignore_eos seed logit_bias logprobs
  presence_penalty frequency_penalty repetition_penalty       optional, as in drawloom.SamplingParams
What a row leaves out (or has as null) comes from the options below. Blank lines are skipped.

Line i of OUT is the result of row i: {"index", "id", "text", "finish_reason", "stop_reason", "seed", "prompt_tokens",
"tokens"}, with "logprobs": true also "token_ids" and "logprobs"; or, for a row that can't run, {"index", "id",
"error": {"kind", "field", "message"}}. A result has an "error" beside its "text" where max_tokens cut the text before
it was what the constraint asks. Rows with errors stop nothing and leave the exit status at 0; stderr counts them.

A row without a seed has one that follows from the run's --seed and its index, so that every row can be run again.
A run that was killed goes on where it stopped when the same command is given again, and the file becomes, byte for
byte, that of a run that was not. OUT.run beside OUT holds what that takes, a drawn seed included. Other options,
another model, or an input that has changed (but for rows added at its end) are refused.

examples:
  drawloom batch questions.jsonl answers.jsonl --temperature 0
  drawloom batch mails.jsonl invoices.jsonl --schema invoice.schema.json --seed 1 --max-tokens 120
"""
CHAT = """\
Type a message, get an answer. /reset forgets the conversation, /exit or the end of the input leaves. Ctrl-C stops an
answer; at the prompt it leaves.

examples:
  drawloom chat
  drawloom chat --system "You answer in one sentence." --temperature 0.2 --seed 1
"""
INFO = """\
examples:
  drawloom info
  drawloom info ./DeepSeek-V2-Lite --json

Only the headers of the model's files are read.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    for stream in (sys.stdin, sys.stdout):  # whatever the locale is: text that a model writes may hold any character
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8")
    try:
        args = _parser().parse_args(arguments)
        command = import_module(f".frontend.command_line.{args.command}", __package__)
        status: int = command.run(args)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is closed; the interpreter's own end needs no interruption
        return INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return PIPE_CLOSED
    except (DrawloomError, OSError) as error:
        what = "the constraint: " if isinstance(error, ConstraintError) else ""
        print(f"drawloom: {what}{' '.join(str(error).split())}", file=sys.stderr)
        return 2 if isinstance(error, RequestError | ConstraintError) else 1


def _discard_output() -> None:
    """Nobody reads on: what is still buffered must not fail once more when the interpreter ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("drawloom", description=DESCRIPTION, epilog=EPILOG, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"drawloom {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_generate(_command(commands, "generate", "write one text", GENERATE))
    _add_batch(_command(commands, "batch", "run a file of prompts, resumably", BATCH))
    _add_chat(_command(commands, "chat", "talk with a model", CHAT))
    _add_info(_command(commands, "info", "describe a model and the memory it needs", INFO))
    return parser


def _command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, purpose: str, epilog: str
) -> argparse.ArgumentParser:
    return commands.add_parser(
        name,
        help=purpose,
        description=purpose.capitalize() + ".",
        epilog=epilog,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _add_generate(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("prompt", nargs="?", metavar="PROMPT", help="the prompt; - reads it from stdin")
    source.add_argument("--file", metavar="FILE", help="read the prompt from FILE; one newline at its end is left off")
    parser.add_argument("--system", metavar="TEXT", help="a system message before the prompt")
    _add_raw(parser)
    _add_constraints(parser)
    _add_sampling(parser)
    _add_model(parser)


def _add_batch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", metavar="IN.jsonl", help="the rows to run")
    parser.add_argument("output", metavar="OUT.jsonl", help="their results, in the same order")
    parser.add_argument("--overwrite", action="store_true", help="begin anew where OUT.jsonl holds results already")
    parser.add_argument(
        "--in-flight", type=int, default=256, metavar="N", help="rows held in memory at once (default: %(default)s)"
    )
    _add_raw(parser)
    _add_constraints(parser)
    _add_sampling(parser)
    _add_model(parser)


def _add_chat(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--system", metavar="TEXT", help="a system message that begins each conversation")
    _add_sampling(parser, max_tokens=1024)
    _add_model(parser)


def _add_info(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", nargs="?", metavar="FOLDER", help="a Hugging Face folder (default: SmolLM2-135M-Instruct)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _add_raw(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--raw", action="store_true", help="the text continues the prompt: no chat template, if the model has one"
    )


def _add_constraints(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what the text must be (at most one)").add_mutually_exclusive_group()
    group.add_argument("--schema", metavar="FILE|JSON", help="JSON that is valid under this JSON Schema")
    group.add_argument("--regex", metavar="PATTERN", help="the whole text matches, in the syntax of Python's re")
    group.add_argument("--ebnf", metavar="FILE|TEXT", help="a sentence of this grammar in the Lark dialect")
    group.add_argument("--choice", action="append", dest="choices", metavar="TEXT", help="one of these; give several")


def _add_sampling(parser: argparse.ArgumentParser, max_tokens: int = SamplingParams.max_tokens) -> None:
    group = parser.add_argument_group("sampling")

    def add(name: str, kind: type, default: float | None, purpose: str) -> None:
        shown = "" if default is None else " (default: %(default)s)"
        group.add_argument(
            name, type=kind, default=default, metavar="X" if kind is float else "N", help=purpose + shown
        )

    add("--seed", int, None, "what every draw follows from (default: drawn, and reported)")
    add("--temperature", float, SamplingParams.temperature, "0 takes the most probable token")
    add("--top-p", float, SamplingParams.top_p, "keep the most probable tokens that sum to this probability")
    add("--top-k", int, SamplingParams.top_k, "keep that many most probable tokens; 0 keeps all")
    add("--min-p", float, SamplingParams.min_p, "keep tokens this many times as probable as the best")
    add("--max-tokens", int, max_tokens, "new tokens at most")
    group.add_argument("--stop", action="append", default=[], metavar="TEXT", help="ends the text; give several")


def _add_model(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model")
    group.add_argument("--model", metavar="FOLDER", help="a Hugging Face folder (default: SmolLM2-135M-Instruct)")
    group.add_argument(
        "--dtype",
        choices=("auto", "float32", "bfloat16"),
        default="auto",
        help="auto: bfloat16 where the processor multiplies it natively, else float32 (default: %(default)s)",
    )
    group.add_argument(
        "--threads", type=int, metavar="N", help="threads of PyTorch (default: as many as it would take)"
    )
    group.add_argument(
        "--kv-bytes",
        type=int,
        metavar="N",
        help="bytes of the latent cache (default: 1 GiB, a quarter of what is free)",
    )


if __name__ == "__main__":
    sys.exit(main())
