"""The loop: schedule, fill masks, forward, sample, commit. It runs on one thread and sleeps when there is no work."""

import logging
import os
import threading
from collections import deque
from collections.abc import Callable

import torch

from ..errors import EngineError
from .masks import MaskFiller
from .model_runner import ModelRunner
from .plan import Plan
from .sampler import Sampled, Sampler, SamplingRow
from .scheduler import Scheduler
from .sequence import Sequence

__all__ = ["StepLoop"]

_logger = logging.getLogger("drawloom")


class StepLoop:
    """Owns the scheduler, the runner and the sampler; others only put work into its inbox."""

    def __init__(self, scheduler: Scheduler, runner: ModelRunner, masks: MaskFiller, num_threads: int) -> None:
        self.scheduler = scheduler
        self._runner = runner
        self._masks = masks
        self._sampler = Sampler()
        self._num_threads = num_threads
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._process = os.getpid()
        self._broken: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="drawloom-steps", daemon=True)
        self._thread.start()

    def call(self, work: Callable[[], None]) -> None:
        """Run `work` on the loop's thread between two steps."""
        self._check_process()
        with self._wake:
            if self._broken is not None:
                raise EngineError(f"the engine stopped: {self._broken!r}") from self._broken
            if self._closing:
                raise EngineError("the engine is closed")
            self._inbox.append(work)
            self._wake.notify()

    def check_may_wait(self) -> None:
        """Raise `EngineError` on the loop's own thread, where to wait for a step would be to wait for ever."""
        self._check_process()
        if threading.current_thread() is self._thread:
            raise EngineError("called from on_delta, on the engine's own thread, which no step would ever leave again")

    def close(self) -> None:
        """Cancel what runs and end the thread. Safe to call twice."""
        if self._process != os.getpid():
            return  # the thread, and perhaps the lock it held, stayed with the parent
        with self._wake:
            self._closing = True
            self._wake.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._masks.close()

    def step(self) -> None:
        plan = self.scheduler.schedule()
        if not plan.chunks:
            return
        sequences = plan.sampled
        inputs = self._runner.prepare(plan)
        filling = self._masks.start(sequences)
        try:
            output = self._runner.forward(plan, inputs)
            masks = filling.result()
            sampled = self._sampler.sample(output.logits, [_sampling_row(one) for one in sequences], masks.bitmask)
        except Exception as error:
            filling.exception()  # the matchers are in use until the fill has ended
            self._fail(plan, error)
            return
        results = dict(zip(sequences, sampled, strict=True))
        for sequence, fault in masks.errors.items():
            results[sequence] = Sampled(token_id=-1, logprob=0.0, top_logprobs=None, error=fault)
        self.scheduler.commit(plan, results, output.scores)

    def _check_process(self) -> None:
        if self._process != os.getpid():
            raise EngineError("the engine was created before a fork and does not run in this process: create a new one")

    def _fail(self, plan: Plan, error: Exception) -> None:
        _logger.exception("a step failed; its %d requests end with an error", len(plan.chunks))
        fault = EngineError(f"the step failed: {error!r}")
        fault.__cause__ = error
        self.scheduler.fail([chunk.sequence for chunk in plan.chunks], fault)

    def _run(self) -> None:
        torch.set_num_threads(self._num_threads)
        try:
            with torch.inference_mode():
                while self._take_work():
                    self.step()
        except BaseException as error:
            self._break(error)
            raise

    def _take_work(self) -> bool:
        """Wait for something to do, let in what has come. False: close."""
        with self._wake:
            while not (self._inbox or self._closing or self.scheduler.has_work):
                self._wake.wait()
            closing = self._closing
            work = list(self._inbox)
            self._inbox.clear()
        for one in work:
            one()
        if closing:
            self.scheduler.cancel_all()
        return not closing

    def _break(self, error: BaseException) -> None:
        with self._wake:
            self._broken = error
            work = list(self._inbox)
            self._inbox.clear()
        for one in work:  # sequences that had not been let in yet must hear of it too
            one()
        self.scheduler.abandon(EngineError(f"the engine stopped: {error!r}"))


def _sampling_row(sequence: Sequence) -> SamplingRow:
    request = sequence.request
    return SamplingRow(
        params=request.sampling,
        seed=request.seed,
        position=len(sequence.tokens),
        prompt_ids=request.prompt_ids,
        output_ids=sequence.output_ids,
        eos_ids=sequence.eos_ids,
        constrained=sequence.matcher is not None,
    )
