"""The steps that the executor has been given and the engine has not taken yet."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter

from ingot.runtime.batch import Batch
from ingot.runtime.drawing import Drawing, Recipients
from ingot.runtime.executor import Executor, Pending
from ingot.runtime.metrics import NO_STEPS, STEP_SIZES, Tally
from ingot.runtime.scheduler import Chunk, Scheduler
from ingot.runtime.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Flight:
    """A step that is under way."""

    chunks: list[Chunk]
    recipients: Recipients
    pending: Pending
    began: float


class Flights:
    """At most two steps, in the order of submission: the second where it `can_follow` the first."""

    def __init__(
        self, scheduler: Scheduler, executor: Executor, drawing: Drawing, tally: Tally
    ) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._drawing = drawing
        self._tally = tally
        self._flights: deque[Flight] = deque()
        self._landed = 0.0
        self.landed: list[Chunk] = []  # by the last step
        self.steps_by_size = [*NO_STEPS]

    def __bool__(self) -> bool:
        return bool(self._flights)

    @property
    def first(self) -> Recipients:
        """Who gets what of the step that lands next."""
        return self._flights[0].recipients

    def submit(self, batch: Batch, recipients: Recipients, *, beside: bool) -> None:
        began = perf_counter()
        batch.inputs.copies = self._scheduler.residence.take_copies()
        self._scheduler.advance(batch.chunks)
        for chunk in batch.chunks:
            if not chunk.sequence.times.started:
                chunk.sequence.times.started = began
        num_tokens = sum(chunk.num_tokens for chunk in batch.chunks)
        self._tally["num_computed_tokens"] += num_tokens
        self.steps_by_size[bisect_left(STEP_SIZES, num_tokens)] += 1
        began = perf_counter()
        pending = self._executor.submit(batch.inputs, recipients.wants, beside=beside)
        self._flights.append(Flight(batch.chunks, recipients, pending, began))

    def land(self) -> list[Sequence]:
        """Waits for the first step, and takes what it has drawn; see `Drawing.take`."""
        flight = self._flights.popleft()
        for sequence in flight.recipients.drawing:  # beside the kernels, where they run already
            sequence.sampling.advance(sequence.token_ids, sequence.num_prompt)
        result = flight.pending.wait()
        began, self._landed = max(flight.began, self._landed), perf_counter()
        self._tally["kernel_seconds"] += self._landed - began - result.seconds
        self._tally["num_steps"] += 1
        self._scheduler.complete(flight.chunks)
        self.landed = flight.chunks
        return self._drawing.take(flight.recipients, result)

    def abandon(self) -> None:
        """Waits for all steps, whatever comes of them: an earlier error tells of it."""
        while self._flights:
            with suppress(BaseException):
                self._flights.popleft().pending.wait()
