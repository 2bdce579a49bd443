"""`drawloom chat`: a conversation in the terminal."""

import sys
from argparse import Namespace
from dataclasses import replace

from ...errors import ConstraintError, RequestError
from ...runtime.chat_template import render_pieces
from ...runtime.engine import Engine
from ...runtime.request import Result
from ...runtime.sampling_params import SamplingParams
from ...runtime.seeds import derive_seed, draw_seed
from ..seen_ids import SeenIds
from .answer import Answer
from .options import model_folder, open_engine, read_sampling

__all__ = ["run"]


def run(args: Namespace) -> int:
    sampling = read_sampling(args)
    seed = draw_seed() if sampling.seed is None else sampling.seed
    with open_engine(args, model_folder(args.model)) as engine:
        if engine.tokenizer.chat_template is None:
            raise RequestError("model", args.model, "has no chat template: `drawloom generate` continues texts")
        conversation = Conversation(engine, sampling, seed, args.system)
        print(f"seed={seed}  /reset forgets, /exit leaves", file=sys.stderr)
        while (message := _read()) is not None:
            if message == "/reset":
                conversation.reset()
            elif message == "/exit":
                break
            elif message.startswith("/"):
                print(f"{message.split()[0]} is no command: there are /reset and /exit", file=sys.stderr)
            elif message.strip():
                _take_turn(conversation, message)
    return 0


class Conversation:
    """Messages so far, and the ids that the model has seen of them, so that a turn computes only what is new."""

    def __init__(self, engine: Engine, sampling: SamplingParams, seed: int, system: str | None) -> None:
        self._engine = engine
        self._sampling = sampling
        self._seed = seed
        self._system = [] if system is None else [{"role": "system", "content": system}]
        self._num_turns = 0
        self.reset()

    def reset(self) -> None:
        self._messages = list(self._system)
        self._seen = SeenIds(self._engine.tokenizer)

    def ask(self, message: str) -> Answer:
        """The answer as it comes. It is part of the conversation once `keep` is told."""
        tokenizer = self._engine.tokenizer
        messages = [*self._messages, {"role": "user", "content": message}]
        self._prompt = self._seen.prompt(render_pieces(tokenizer, messages, add_generation_prompt=True))
        seed = derive_seed(self._seed, ("turn", self._num_turns))
        answer = Answer(self._engine, self._prompt.ids, replace(self._sampling, seed=seed))
        self._num_turns += 1
        return answer

    def keep(self, message: str, result: Result) -> None:
        """An answer that was stopped counts as far as it came; nothing at all leaves the message out too."""
        self._seen.extend(self._prompt, result.token_ids)
        if result.text:
            answer = {"role": "assistant", "content": result.text}
            self._messages += [{"role": "user", "content": message}, answer]


def _take_turn(conversation: Conversation, message: str) -> None:
    try:
        answer = conversation.ask(message)
    except (RequestError, ConstraintError) as error:
        print(f"drawloom: {error}; /reset forgets the conversation", file=sys.stderr)
        return
    try:
        for piece in answer.pieces():
            sys.stdout.write(piece)
            sys.stdout.flush()
    except KeyboardInterrupt:
        answer.cancel()
    result = answer.finish()
    sys.stdout.write("\n")
    sys.stdout.flush()
    conversation.keep(message, result)
    print(
        f"[{result.finish_reason}, {len(result.token_ids)} tokens, {answer.speed():.1f} tokens/s, "
        f"{result.cached_tokens} of {result.prompt_tokens} prompt tokens cached]",
        file=sys.stderr,
    )


def _read() -> str | None:
    """The next line. None: there is none."""
    if not sys.stdin.isatty():
        try:
            line = sys.stdin.readline()
        except UnicodeDecodeError as error:
            raise RequestError("message", "stdin", f"is no UTF-8: {error}") from error
        return line.removesuffix("\n") if line else None
    import readline  # noqa: F401  # gives `input` its editing and history

    try:
        return input("> ")
    except EOFError:
        print()
        return None
