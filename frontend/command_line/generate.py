"""`drawloom generate`: one text to stdout."""

import sys
from argparse import Namespace

from ...errors import RequestError
from .answer import Answer, is_whole
from .options import model_folder, open_engine, read_constraint, read_sampling, read_text
from .prompts import prompt_ids

__all__ = ["run"]


def run(args: Namespace) -> int:
    sampling, wanted = read_sampling(args), read_constraint(args)
    prompt = _prompt(args)
    with open_engine(args, model_folder(args.model)) as engine:
        ids = prompt_ids(engine.tokenizer, prompt, raw=args.raw, system=args.system)
        answer = Answer(engine, ids, sampling, wanted.constraint if wanted is not None else None)
        for piece in answer.pieces():
            sys.stdout.write(piece)
            sys.stdout.flush()
    result = answer.finish()
    if sys.stdout.isatty():
        print(file=sys.stderr)
    print(
        f"seed={result.seed} finish_reason={result.finish_reason} prompt_tokens={result.prompt_tokens} "
        f"tokens={len(result.token_ids)} tokens/s={answer.speed():.1f}",
        file=sys.stderr,
    )
    if not is_whole(result, wanted):
        message = "the text was cut before it was what the constraint asks"
        raise RequestError("max_tokens", sampling.max_tokens, message)
    return 0


def _prompt(args: Namespace) -> str:
    if args.file is not None:
        text = read_text("file", args.file)
    elif args.prompt == "-":
        try:
            text = sys.stdin.read()
        except UnicodeDecodeError as error:
            raise RequestError("prompt", "-", f"stdin is no UTF-8: {error}") from error
    else:
        return str(args.prompt)
    return text.removesuffix("\n")
