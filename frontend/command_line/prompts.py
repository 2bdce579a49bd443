"""From messages or plain text to prompt ids."""

from collections.abc import Mapping, Sequence

from ...errors import RequestError
from ...runtime.chat_template import render
from ...runtime.tokenizer import Special, Tokenizer

__all__ = ["chat_ids", "prompt_ids"]


def prompt_ids(tokenizer: Tokenizer, text: str, *, raw: bool, system: str | None = None) -> list[int]:
    """As a user's message where the model has a chat template, else, or if `raw`, as the beginning of the text."""
    if not raw and tokenizer.chat_template is not None:
        before = [] if system is None else [{"role": "system", "content": system}]
        return chat_ids(tokenizer, [*before, {"role": "user", "content": text}])
    if system is not None:
        raise RequestError("system", system, "needs a chat template, which a raw prompt, or this model, does not have")
    begin = [Special(tokenizer.roles["bos_token"])] if tokenizer.add_bos else []
    return tokenizer.encode_pieces([*begin, text])


def chat_ids(tokenizer: Tokenizer, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """A conversation that the model is to go on with."""
    if tokenizer.chat_template is None:
        raise RequestError("messages", messages, "need a chat template, which this model does not have")
    return render(tokenizer, messages, add_generation_prompt=True)
