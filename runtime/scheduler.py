"""Which tokens run in the next step (:meth:`Scheduler.schedule`), and what their results become (:meth:`commit`)."""

from bisect import insort
from collections.abc import Mapping
from collections.abc import Sequence as Items

from ..errors import DrawloomError
from .kv_cache import KVCache
from .output import Ending, add_token, emit, emit_end, ending
from .plan import Chunk, PageCopy, Plan
from .request import TopLogprobs
from .sampler import Sampled
from .sequence import Sequence, State

__all__ = ["Scheduler"]


class Scheduler:
    """Continuous batching: decoding rows first, then prefill in chunks, in order of priority and arrival.

    Pure Python without torch; the only writer of sequences. Where memory runs out the sequence that comes last is
    paused: it gives its pages back and computes what was evicted again later, which changes no bit of its result.
    """

    def __init__(self, cache: KVCache, *, max_batch_tokens: int, max_sequences: int, fingerprint: str) -> None:
        self.cache = cache
        self._max_batch_tokens = max_batch_tokens
        self._max_sequences = max_sequences
        self.fingerprint = fingerprint
        self._waiting: list[Sequence] = []  # sorted by rank
        self._running: list[Sequence] = []  # sorted by rank
        self.counters = dict.fromkeys(
            ("steps", "prompt_tokens", "cached_tokens", "computed_tokens", "generated_tokens", "pauses")
            + ("finished", "cancelled", "failed", "peak_running"),
            0,
        )

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    def add(self, sequence: Sequence) -> None:
        insort(self._waiting, sequence, key=_rank)

    def schedule(self) -> Plan:
        """Choose the next step's tokens and take pages for them. The plan is empty only if nothing is left to do."""
        for sequence in [*self._waiting, *self._running]:
            if sequence.cancelled:
                self._end(sequence, ("cancelled", None))
        copies: list[PageCopy] = []
        chunks = self._continue_running()
        room = self._max_batch_tokens - sum(chunk.length for chunk in chunks)
        self._admit(chunks, copies, room)
        self.counters["steps"] += bool(chunks)
        self.counters["peak_running"] = max(self.counters["peak_running"], len(self._running))
        return Plan(tuple(chunks), tuple(copies))

    def commit(
        self,
        plan: Plan,
        sampled: Mapping[Sequence, Sampled],
        scores: Mapping[Sequence, Items[tuple[int, float, TopLogprobs | None]]],
    ) -> None:
        """Make the step history. `scores`: (position, log-probability, alternatives) of prompt tokens."""
        for chunk in plan.chunks:
            sequence = chunk.sequence
            sequence.num_computed += chunk.length
            self.counters["computed_tokens"] += chunk.length
            self.cache.share_full_pages(sequence)
            for position, logprob, top in scores.get(sequence, ()):
                sequence.prompt_logprobs[position] = (logprob, top)
            if chunk.samples:
                self._commit_token(sequence, sampled[sequence])
            elif not sequence.generates and sequence.num_computed == sequence.num_to_compute:
                self._end(sequence, ("stop", None))

    def fail(self, sequences: Items[Sequence], error: DrawloomError) -> None:
        """End `sequences` with `error`. Their private pages may be half written and are not kept."""
        for sequence in sequences:
            if sequence.state is not State.FINISHED:
                self.cache.discard(sequence)
                self._leave(sequence)
                self.counters["failed"] += 1
                sequence.send(error)

    def cancel(self, sequence: Sequence) -> None:
        """End `sequence` before the next step, unless it has ended already."""
        sequence.cancelled = True

    def cancel_all(self) -> None:
        for sequence in [*self._waiting, *self._running]:
            self._end(sequence, ("cancelled", None))

    def abandon(self, error: DrawloomError) -> None:
        """Tell everyone that the engine has stopped. Pages are not put in order: nothing runs after this."""
        left = [*self._waiting, *self._running]
        self._waiting, self._running = [], []
        for sequence in left:
            sequence.state = State.FINISHED
            sequence.send(error)

    def check_integrity(self) -> None:
        self.cache.check_integrity(self._running)

    # Scheduling

    def _continue_running(self) -> list[Chunk]:
        """Chunks of the running sequences, in rank order: a decoding row each, and prefill while there is room."""
        decoding = sum(1 for sequence in self._running if _remaining(sequence) == 1)
        room = max(self._max_batch_tokens - decoding, 0)
        chunks: list[Chunk] = []
        position = 0
        while position < len(self._running):
            sequence = self._running[position]
            remaining = _remaining(sequence)
            length = remaining if remaining == 1 else min(remaining, room)
            if length and not self._reserve_or_pause(sequence, sequence.num_computed + length):
                continue  # it paused itself, so the next one has moved to this position
            if length:
                room -= length if remaining > 1 else 0
                chunks.append(_chunk(sequence, length))
            position += 1
        return chunks

    def _reserve_or_pause(self, sequence: Sequence, num_tokens: int) -> bool:
        """Take pages for `sequence`, pausing those behind it where needed. False: it had to pause itself."""
        while not self.cache.reserve(sequence, num_tokens):
            last = self._running[-1]
            self._pause(last)
            if last is sequence:
                return False
        return True

    def _pause(self, sequence: Sequence) -> None:
        assert len(self._running) > 1, "a sequence that fits the pool alone is never paused alone"
        self.cache.release(sequence)
        self._running.remove(sequence)
        sequence.state = State.WAITING
        insort(self._waiting, sequence, key=_rank)
        self.counters["pauses"] += 1

    def _admit(self, chunks: list[Chunk], copies: list[PageCopy], room: int) -> None:
        for sequence in self._waiting[: self._max_sequences]:
            if room <= 0 or len(self._running) >= self._max_sequences:
                return
            if self._prefix_is_coming(sequence):
                continue
            if not self._fits(sequence):
                return
            copy = self.cache.attach_prefix(sequence)
            if copy is not None:
                copies.append(copy)
            length = min(_remaining(sequence), room)
            reserved = self.cache.reserve(sequence, sequence.num_computed + length)
            assert reserved
            self._waiting.remove(sequence)
            insort(self._running, sequence, key=_rank)
            sequence.state = State.RUNNING
            self._count_admission(sequence)
            chunks.append(_chunk(sequence, length))
            room -= length

    def _fits(self, sequence: Sequence) -> bool:
        """Whether all its tokens and one page to grow would fit now. Alone it always does: max_len sees to that."""
        needed = self.cache.pages_for(len(sequence.tokens)) + 1
        return not self._running or needed <= self.cache.num_available()

    def _prefix_is_coming(self, sequence: Sequence) -> bool:
        """Whether a running sequence is about to compute a page of this one's prefix: then sharing beats starting."""
        size = self.cache.page_size
        rivals = [other for other in self._running if _remaining(other) > 1 or other.num_computed < other.num_prompt]
        if not rivals:
            return False
        start = self.cache.cached_prefix_len(sequence) // size * size
        if start + size > sequence.match_limit:
            return False
        page = sequence.tokens[start : start + size]
        return any(
            other.num_computed < start + size <= other.num_to_compute
            and other.tokens[start : start + size] == page
            and other.tokens[:start] == sequence.tokens[:start]
            for other in rivals
        )

    def _count_admission(self, sequence: Sequence) -> None:
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.num_computed
            self.counters["prompt_tokens"] += sequence.num_prompt
            self.counters["cached_tokens"] += sequence.num_computed

    # Committing

    def _commit_token(self, sequence: Sequence, sampled: Sampled) -> None:
        error = sampled.error or add_token(sequence, sampled)
        if error is not None:
            self.fail([sequence], error)
            return
        self.counters["generated_tokens"] += 1
        ended = ending(sequence)
        if ended is None:
            emit(sequence)
        else:
            self._end(sequence, ended)

    def _end(self, sequence: Sequence, ended: Ending) -> None:
        self.cache.release(sequence)
        self._leave(sequence)
        self.counters["cancelled" if ended[0] == "cancelled" else "finished"] += 1
        emit_end(sequence, ended, self.fingerprint)

    def _leave(self, sequence: Sequence) -> None:
        (self._running if sequence.state is State.RUNNING else self._waiting).remove(sequence)
        sequence.state = State.FINISHED


def _rank(sequence: Sequence) -> tuple[int, int]:
    return sequence.rank


def _remaining(sequence: Sequence) -> int:
    return sequence.num_to_compute - sequence.num_computed


def _chunk(sequence: Sequence, length: int) -> Chunk:
    samples = sequence.generates and sequence.num_computed + length == len(sequence.tokens)
    return Chunk(sequence, sequence.num_computed, length, samples)
