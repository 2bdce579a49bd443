"""What a branch has written: as text for its readers, as messages, and as the prompt of what comes next."""

from dataclasses import dataclass, field

from ..runtime.chat_template import render_pieces
from ..runtime.tokenizer import Special, Tokenizer
from .nodes import RoleName
from .seen_ids import Prompt, SeenIds

__all__ = ["Message", "Transcript"]


@dataclass(slots=True)
class Message:
    role: RoleName
    parts: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, str]:
        return {"role": self.role, "content": "".join(self.parts)}


class Transcript:
    """Append-only. `pieces` joined are the text; in a chat each message has a line ``role: `` of its own."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.messages: list[Message] = []
        self.is_open = False  # the last message is being written
        self._seen: SeenIds | None = None
        self._history: tuple[int, list[str | Special]] | None = None

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def write(self, text: str) -> None:
        if text:
            self.pieces.append(text)
            if self.is_open:
                self.messages[-1].parts.append(text)

    def open_message(self, role: RoleName) -> None:
        assert not self.is_open
        self.pieces.append(f"\n{role}: " if self.messages else f"{role}: ")
        self.messages.append(Message(role))
        self.is_open = True

    def close_message(self, *, drop_empty: bool = False) -> None:
        """`drop_empty`: leave an empty message out of the history, since what was to be in it has failed."""
        assert self.is_open
        if drop_empty and not self.messages[-1].parts:
            self.messages.pop()
        self.is_open = False

    def prompt(self, tokenizer: Tokenizer, ending: str = "") -> Prompt:
        """The ids of all that has been written, then `ending`. In a chat: up to the open message's present end."""
        if self._seen is None:
            self._seen = SeenIds(tokenizer)
        if not self.messages:
            return self._seen.prompt([*_beginning(tokenizer), self.text + ending])
        assert self.is_open
        return self._seen.prompt([*self._opened(tokenizer), "".join(self.messages[-1].parts) + ending])

    def keep(self, prompt: Prompt, generated: list[int]) -> None:
        """The model has read `prompt` and written `generated`: later prompts begin with these ids."""
        assert self._seen is not None
        self._seen.extend(prompt, generated)

    def after_message(self, tokenizer: Tokenizer, ending: str) -> str | Special | None:
        """What the template writes after the open message, were `ending` its last text. None: it rewrites the text."""
        messages = [message.as_dict() for message in self.messages]
        messages[-1]["content"] += ending
        whole = render_pieces(tokenizer, messages, add_generation_prompt=False)
        before = list(self._opened(tokenizer))
        start = before.pop() if before and isinstance(before[-1], str) else ""
        written = f"{start}{messages[-1]['content']}"
        place = len(before)
        holds = whole[place] if len(whole) > place and whole[:place] == before else None
        if not isinstance(holds, str) or not holds.startswith(written):
            return None
        return holds.removeprefix(written) or (whole[place + 1] if len(whole) > place + 1 else None)

    def _opened(self, tokenizer: Tokenizer) -> list[str | Special]:
        """The history before the open message, and what the template writes to let the model answer."""
        number = len(self.messages) - 1
        if self._history is None or self._history[0] != number:
            messages = [message.as_dict() for message in self.messages[:-1]]
            self._history = number, render_pieces(tokenizer, messages, add_generation_prompt=True)
        return self._history[1]


def _beginning(tokenizer: Tokenizer) -> list[str | Special]:
    return [Special(tokenizer.roles["bos_token"])] if tokenizer.add_bos else []
