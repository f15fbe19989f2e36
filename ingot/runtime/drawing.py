"""Pipeline of draws: wants of a step, steps in flight, and the effects of their tokens."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

import numpy as np

from ingot.artifact.programs import LOGITS
from ingot.errors import IngotError
from ingot.runtime.arrays import Float32
from ingot.runtime.batch import Batch
from ingot.runtime.executor import Executor, Pending, Scoring, StepResult, StepWants, TokenScore
from ingot.runtime.logits_cache import LogitsCache
from ingot.runtime.metrics import NO_STEPS, STEP_SIZES, Tally
from ingot.runtime.output import FinishReason
from ingot.runtime.scheduler import Scheduler
from ingot.runtime.sequence import Chunk, Sequence

MAX_KNOWN = 16  # requests whose known logits are drawn from before a step


class Owner(Protocol):
    """Part of the engine that drawing calls."""

    scheduler: Scheduler

    def deliver(self, changed: list[Sequence]) -> None: ...
    def finish(
        self, sequence: Sequence, reason: FinishReason, stop_reason: str | int | None = None
    ) -> None: ...
    def fail(self, sequence: Sequence, error: IngotError) -> None: ...


class Drawing:
    """Says what a step must draw, and ends the sequences whose last token was drawn."""

    def __init__(
        self, owner: Owner, executor: Executor, tally: Tally, logits_cache: LogitsCache
    ) -> None:
        self._owner = owner
        self._executor = executor
        self._tally = tally
        self._logits_cache = logits_cache
        self._known: list[tuple[Sequence, Float32]] = []

    def look_up(self, sequence: Sequence) -> None:
        """Notes the sequence for `draw_known` if the logits of its prompt are cached."""
        if not sequence.num_unscored:
            state = sequence.session
            logits = state.logits_after(sequence.token_ids) if state else None
            if logits is None:
                logits = self._logits_cache.get(sequence.token_ids, sequence.salt)
            if logits is not None:
                self._known.append((sequence, logits))

    def draw_known(self) -> list[Sequence]:
        """Draws the first tokens of sequences whose prompts' logits were cached."""
        if not self._known:
            return []
        # Not all at once: their logits are copied.
        known, self._known = self._known[:MAX_KNOWN], self._known[MAX_KNOWN:]
        ready, rows = [], []
        for sequence, logits in known:
            # One that already runs computes its prompt like any other.
            if not sequence.finished and not sequence.is_running and not sequence.num_generated:
                family = _family(sequence)
                ready += family
                rows += [logits] * len(family)
                for member in family:
                    member.num_cached = member.num_prompt
        if ready:
            began = perf_counter()
            tokens = self._executor.draw(np.stack(rows), ready)
            self._accept(ready, tokens, perf_counter() - began)
        return ready

    def recipients(self, chunks: list[Chunk]) -> Recipients:
        """Recipients of the logits of a step that computes these chunks."""
        found, end = Recipients(), 0
        for chunk in chunks:
            sequence = chunk.sequence
            end += chunk.num_rows
            if chunk.num_rows > chunk.draws:
                found.score(chunk, end - chunk.num_rows)
            if chunk.draws:
                begins = chunk.end == sequence.num_prompt
                sequences = _family(sequence) if begins else [sequence]
                found.draw(sequences, end - 1, chunk.end)
                if begins and not self._logits_cache.paused:
                    found.cached.append(sequence)
                    found.keep([end - 1])
            if chunk.draft:
                found.drafted.append((chunk, found.keep(range(end, end + len(chunk.draft)))))
                end += len(chunk.draft)
        return found

    def take(self, recipients: Recipients, result: StepResult) -> list[Sequence]:
        """Takes the results of a step; returns the sequences that got a token or an error.

        Sequences that ended while it ran get nothing. Where drafts were right, those are returned
        that got something with the last of their tokens; the others were delivered before.
        """
        failed: list[Sequence] = []
        for sequence, scores in zip(recipients.scored, result.scores, strict=True):
            if isinstance(scores, IngotError):
                members = [] if sequence.finished else _family(sequence)
                for member in members:
                    self._owner.fail(member, scores)
                failed += members
            else:
                sequence.prompt_logprobs += scores
        kept = result.rows[LOGITS]  # those of prompts come before those of drafts
        for sequence, logits in zip(recipients.cached, kept, strict=False):
            self._logits_cache.put(sequence.prompt_ids, sequence.salt, logits)
        taken = failed + self._accept(recipients.drawing, result.tokens, result.seconds)
        return self._follow(recipients.drafted, kept, taken) if recipients.drafted else taken

    def _follow(
        self, drafted: list[tuple[Chunk, int]], logits: Float32, taken: list[Sequence]
    ) -> list[Sequence]:
        """Goes on where the token that was drawn is the next one of the draft.

        The logits after it are there already. They are drawn from as if another step had computed
        them, so the tokens are those of decoding without drafts.
        """
        self._tally["num_drafts"] += len(drafted)
        self._tally["num_draft_tokens"] += sum(len(chunk.draft) for chunk, _ in drafted)
        while drafted := [each for each in drafted if _is_right(each[0])]:
            self._tally["num_accepted_tokens"] += len(drafted)
            self._owner.deliver(taken)  # a stop string may end one before its next token
            taken, drafted = [], [each for each in drafted if not each[0].sequence.finished]
            if drafted:
                going = [chunk.sequence for chunk, _ in drafted]
                for chunk, _ in drafted:
                    self._owner.scheduler.keep(chunk)
                rows = [row + chunk.num_drawn - 1 for chunk, row in drafted]
                began = perf_counter()
                draws = self._executor.draw(logits[rows], going)
                taken = self._accept(going, draws, perf_counter() - began)
        return taken

    def _accept(
        self, sequences: list[Sequence], draws: list[TokenScore | IngotError], seconds: float
    ) -> list[Sequence]:
        self._tally["sampler_seconds"] += seconds
        now, accepted = perf_counter(), []
        for sequence, draw in zip(sequences, draws, strict=True):
            if not sequence.finished:
                self._take(sequence, draw, now)
                self._join(sequence)
                accepted.append(sequence)
        return accepted

    def _take(self, sequence: Sequence, draw: TokenScore | IngotError, now: float) -> None:
        """Appends a token; or ends the sequence with the error."""
        sequence.num_pending -= sequence.num_pending > 0  # siblings wait for their parent's step
        if isinstance(draw, IngotError):  # one request's trouble, not the others'
            guide = sequence.sampling.guide
            self._owner.fail(sequence, (guide and guide.error) or draw)
            return
        token, times = draw.token, sequence.times
        if not sequence.params.max_tokens:  # the prompt alone was to be read, and now has been
            times.last_token = now
            self._owner.finish(sequence, "length")
            return
        sequence.token_ids.append(token)
        self._tally["num_generated_tokens"] += 1
        times.last_token = now
        if not times.first_token:
            times.first_token = now
        if draw.logprobs:
            sequence.logprobs.append(draw.logprobs)
            sequence.cumulative_logprob += draw.logprobs[token].logprob
        self._end(sequence, token)

    def _end(self, sequence: Sequence, token: int) -> None:
        """Ends the sequence if this token is its last."""
        guide = sequence.sampling.guide
        if token in sequence.stop_ids:
            own = token in sequence.params.stop_token_ids
            self._owner.finish(sequence, "stop", token if own else None)
        elif guide is not None and guide.ends(sequence.token_ids, sequence.num_prompt):
            if guide.error is not None:
                self._owner.fail(sequence, guide.error)
            else:
                self._owner.finish(sequence, "stop")
        elif len(sequence.token_ids) >= sequence.max_len:
            self._owner.finish(sequence, "length")

    def _join(self, sequence: Sequence) -> None:
        """A sibling that has its first token no longer waits for its parent."""
        parent = sequence.parent
        if parent is not None:
            parent.siblings.remove(sequence)
            sequence.parent = None
            sequence.prompt_logprobs = parent.prompt_logprobs
            sequence.times.started = parent.times.started
            if not sequence.finished:
                self._owner.scheduler.fork(parent, sequence)


class Recipients:
    """Recipients of a step's rows, and the wants that follow from them.

    The kept rows are for the cache, and those after the tokens of drafts.
    """

    def __init__(self) -> None:
        self.wants = StepWants()
        self.drawing: list[Sequence] = []
        self.scored: list[Sequence] = []
        self.cached: list[Sequence] = []
        self.drafted: list[tuple[Chunk, int]] = []  # with the place of the first kept row

    def draw(self, sequences: list[Sequence], row: int, position: int) -> None:
        """A token for each of these, from one row."""
        wants, count = self.wants, len(sequences)
        self.drawing += sequences
        wants.sequences = self.drawing
        wants.rows += [row] * count
        wants.positions += [position] * count

    def keep(self, rows: Iterable[int]) -> int:
        """The logits of these rows; returns the place of the first among those that are kept."""
        kept = self.wants.kept
        assert isinstance(kept, list)
        first = len(kept)
        kept += rows
        return first

    def score(self, chunk: Chunk, first_row: int) -> None:
        """Log-probabilities of the prompt tokens that follow those of the chunk's rows."""
        sequence, first = chunk.sequence, chunk.end - chunk.num_rows
        begin = len(sequence.prompt_logprobs)
        end = min(chunk.end, sequence.num_prompt - 1)
        if begin < end:
            self.scored.append(sequence)
            tokens = sequence.token_ids[begin + 1 : end + 1]
            count = sequence.params.prompt_logprobs or 0
            self.wants.scorings.append(Scoring(first_row + begin - first, tokens, count))


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
        """Recipients of the step that lands next."""
        return self._flights[0].recipients

    def submit(self, batch: Batch, recipients: Recipients, *, beside: bool) -> None:
        began = perf_counter()
        batch.inputs.copies = self._scheduler.advance(batch.chunks)
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
        taken = self._drawing.take(flight.recipients, result)
        self._scheduler.conclude(flight.chunks)
        return taken

    def abandon(self) -> None:
        """Waits for all steps, whatever comes of them: an earlier error tells of it."""
        while self._flights:
            with suppress(BaseException):
                self._flights.popleft().pending.wait()


def _is_right(chunk: Chunk) -> bool:
    """Returns whether the sequence confirmed the draft by one more token than at the last look."""
    sequence, count = chunk.sequence, chunk.num_drawn
    if sequence.finished or count > len(chunk.draft):
        return False
    return sequence.token_ids[-1] == chunk.draft[count - 1]


def _family(sequence: Sequence) -> list[Sequence]:
    """A sequence and its siblings. It comes last: they share its pages while it has them."""
    return [*(s for s in sequence.siblings if not s.finished), sequence]
