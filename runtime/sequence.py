"""A request while it runs. Only the scheduler changes it."""

import logging
from enum import Enum

from ..errors import DrawloomError
from ..grammar import GrammarMatcher
from .detokenizer import Detokenizer
from .radix_cache import Node
from .request import Delta, Request, TopLogprobs
from .stop_strings import StopStrings

__all__ = ["Sequence", "State"]

_logger = logging.getLogger("drawloom")


class State(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Sequence:
    """Tokens, pages and output of one request.

    `pages[i]` holds tokens i * page_size on; the first `num_shared_pages` belong to the radix cache (`node` is the last
    of them, locked), the others to this sequence alone. `num_computed` tokens have their cache entries written.
    """

    def __init__(
        self, request: Request, index: int, *, max_len: int, eos_ids: frozenset[int], detokenizer: Detokenizer
    ) -> None:
        self.request = request
        self.index = index  # order of arrival
        self.max_len = max_len  # prompt and output tokens together
        self.eos_ids = eos_ids
        self.tokens = list(request.prompt_ids)
        self.state = State.WAITING
        self.matcher: GrammarMatcher | None = request.grammar.matcher() if request.grammar is not None else None
        self.detokenizer = detokenizer
        self.stops = StopStrings(request.sampling.stop)
        self.stop_hit: str | None = None
        self.node: Node | None = None
        self.pages: list[int] = []
        self.num_shared_pages = 0
        self.num_computed = 0
        self.cached_tokens: int | None = None
        self.text: list[str] = []
        self.pending_text = ""
        self.pending_ids: list[int] = []
        self.logprobs: list[float] = []
        self.top_logprobs: list[TopLogprobs] = []
        self.prompt_logprobs: dict[int, tuple[float, TopLogprobs | None]] = {}
        self.cancelled = False
        self.deaf = False

    @property
    def num_prompt(self) -> int:
        return len(self.request.prompt_ids)

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def output_ids(self) -> list[int]:
        return self.tokens[self.num_prompt :]

    @property
    def score_start(self) -> int | None:
        """The first prompt position whose log-probability is wanted; position 0 has none."""
        if self.request.score_from is not None:
            return max(1, self.request.score_from)
        return 1 if self.request.sampling.prompt_logprobs else None

    @property
    def generates(self) -> bool:
        return self.request.score_from is None

    @property
    def num_to_compute(self) -> int:
        """Tokens that need cache entries before the next result. The last one of a scored text needs none."""
        return len(self.tokens) if self.generates else len(self.tokens) - 1

    @property
    def match_limit(self) -> int:
        """How many leading tokens may come from the cache: the rows that give results must be computed."""
        limit = self.num_to_compute - 1
        return limit if self.score_start is None else min(limit, self.score_start - 1)

    @property
    def rank(self) -> tuple[int, int]:
        """Smaller runs first."""
        return (-self.request.priority, self.index)

    def write(self, text: str) -> None:
        """Add text, up to a stop string. Before `min_tokens` stop strings are not looked for."""
        if self.num_output >= self.request.sampling.min_tokens:
            text, self.stop_hit = self.stops.push(text)
        self._append(text)

    def write_held(self) -> None:
        """Release what was held back because it could have begun a stop string."""
        self._append(self.stops.finish())

    def send(self, delta: Delta | DrawloomError) -> None:
        """Call the receiver. If it raises, that is logged and the request is cancelled: nobody listens any more."""
        if self.deaf:
            return
        try:
            self.request.on_delta(delta)
        except Exception:
            _logger.exception("the receiver of a request's deltas failed; the request is cancelled")
            self.deaf = self.cancelled = True

    def take_pending(self) -> tuple[str, tuple[int, ...]]:
        taken = self.pending_text, tuple(self.pending_ids)
        self.pending_text, self.pending_ids = "", []
        return taken

    def _append(self, text: str) -> None:
        self.text.append(text)
        self.pending_text += text
