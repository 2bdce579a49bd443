"""A scripted model behind the `Backend` seam: it answers from a thread of its own, with a real tokenizer."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from drawloom.errors import DrawloomError
from drawloom.frontend import set_default_backend
from drawloom.grammar import Constraint
from drawloom.runtime.request import Delta, FinishReason, Result
from drawloom.runtime.sampling_params import SamplingParams
from drawloom.runtime.tokenizer import Tokenizer

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MERGES = [("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("a", "b"), ("e", "s"), ("Ċ", "Ċ"), ("n", "o"), ("ab", "c")]


def make_tokenizer(template: str = TEMPLATE, *, add_bos: bool = False) -> Tokenizer:
    """All bytes, a few merges, four special tokens."""
    vocab = {token: index for index, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    for left, right in MERGES:
        vocab[left + right] = len(vocab)
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=MERGES))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    special = ["<bos>", "<eos>", "<|im_start|>", "<|im_end|>"]
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    return Tokenizer(
        backend,
        vocab_size=len(vocab) + len(special),
        eos_ids=[vocab_id for vocab_id in map(backend.token_to_id, ("<|im_end|>", "<eos>")) if vocab_id is not None],
        roles={"bos_token": "<bos>", "eos_token": "<|im_end|>"},
        add_bos=add_bos,
        chat_templates={"default": template} if template else {},
    )


@dataclass
class Call:
    prompt: str  # special tokens spelled out
    prompt_ids: list[int]
    sampling: SamplingParams
    constraint: Constraint | None
    score_from: int | None
    on_delta: Callable[[Delta | DrawloomError], None] = field(repr=False)
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


@dataclass
class Reply:
    """`pieces` are sent one by one. `ids`: None is the tokenizer's spelling and `<|im_end|>`."""

    pieces: Iterable[str] = ()
    ids: Sequence[int] | None = None
    finish_reason: FinishReason = "stop"
    stop_reason: str | int | None = None
    error: DrawloomError | None = None  # sent after the pieces
    never: bool = False  # nothing is sent after the pieces
    logprobs: Sequence[float] | None = None


Script = Callable[[Call], Reply | str]


class ScriptedBackend:
    """Calls are answered one after the other. `gather`: only when that many wait, and then the last one first."""

    def __init__(self, script: Script, *, tokenizer: Tokenizer | None = None, gather: int = 1) -> None:
        self.tokenizer = tokenizer or make_tokenizer()
        self.calls: list[Call] = []
        self.refuse: Callable[[Call], Exception | None] = lambda call: None
        self._script = script
        self._gather = gather
        self._queue: SimpleQueue[Call | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._answer, daemon=True)
        self._thread.start()

    def submit(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        constraint: Constraint | None = None,
        *,
        on_delta: Callable[[Delta | DrawloomError], None],
        score_from: int | None = None,
    ) -> Call:
        prompt = self.tokenizer.decode(list(prompt_ids), skip_special=False)
        call = Call(prompt, list(prompt_ids), sampling, constraint, score_from, on_delta)
        refused = self.refuse(call)
        if refused is not None:
            raise refused
        self.calls.append(call)
        self._queue.put(call)
        return call

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _answer(self) -> None:
        waiting: list[Call] = []
        while (call := self._queue.get()) is not None:
            waiting.append(call)
            if len(waiting) >= self._gather:
                while waiting:
                    self._send(waiting.pop())

    def _send(self, call: Call) -> None:
        reply = self._script(call)
        reply = Reply([reply]) if isinstance(reply, str) else reply
        sent = []
        for piece in reply.pieces:
            sent.append(piece)
            call.on_delta(Delta(piece, tuple(self.tokenizer.encode(piece))))
        if reply.error is not None:
            call.on_delta(reply.error)
        elif not reply.never:
            result = self._result(call, reply, "".join(sent))
            call.on_delta(Delta("", (), reply.finish_reason, result))

    def _result(self, call: Call, reply: Reply, text: str) -> Result:
        if call.score_from is not None:
            ids = call.prompt_ids[call.score_from :]
            logprobs = [-1.0] * len(ids) if reply.logprobs is None else list(reply.logprobs)
        else:
            end = [self.tokenizer.special_ids["<|im_end|>"]] if reply.finish_reason == "stop" else []
            ids = list(reply.ids) if reply.ids is not None else [*self.tokenizer.encode(text), *end]
            logprobs = [-0.5] * len(ids)
        return Result(
            text=text,
            token_ids=ids,
            logprobs=logprobs,
            finish_reason=reply.finish_reason,
            stop_reason=reply.stop_reason,
            seed=call.sampling.seed or 0,
            fingerprint="scripted",
            prompt_tokens=len(call.prompt_ids),
            cached_tokens=0,
        )


@pytest.fixture
def scripted() -> Iterator[Callable[..., ScriptedBackend]]:
    """`scripted(script, **options)`: a backend that is closed after the test, and the default one until then."""
    backends: list[ScriptedBackend] = []

    def make(script: Script | str, **options: Any) -> ScriptedBackend:
        backend = ScriptedBackend((lambda call: script) if isinstance(script, str) else script, **options)
        backends.append(backend)
        set_default_backend(backend)
        return backend

    yield make
    set_default_backend(None)
    for backend in backends:
        backend.close()


@pytest.fixture
def reply() -> type[Reply]:
    return Reply


@pytest.fixture
def tokenizer_of() -> Callable[..., Tokenizer]:
    return make_tokenizer
