"""Runs texts through `encode` or `tokens`: as many side by side as a step has room for.

Whoever calls runs steps until its own texts are done. A step takes the texts that have waited
longest, whoever they are of, so that callers who come together share steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np

from ingot.artifact.programs import TOKENS
from ingot.artifact.reader import Artifact
from ingot.errors import IngotError, RequestError
from ingot.runtime.arrays import Float32, StepInputs
from ingot.runtime.devices import open_executor
from ingot.runtime.executor import Executor, Pending, StepWants
from ingot.runtime.metrics import EngineCounters, Tally

Stopped = Callable[[], bool]
ALL = StepWants(kept=slice(None))


def never() -> bool:
    """Nobody stops waiting."""
    return False


@dataclass(frozen=True, slots=True)
class EncodedText:
    """A text in tokens; from `second` on, unless it is 0, those of the second text of a pair. The
    first `unpooled` of them have no part in its row."""

    tokens: Sequence[int]
    second: int = 0
    unpooled: int = 0


@dataclass(slots=True, eq=False)
class _Job:
    text: EncodedText
    program: str
    stopped: Stopped
    result: Float32 | BaseException | None = None


@dataclass(slots=True)
class _Flight:
    """A step that was begun, and the texts in it."""

    jobs: list[_Job]
    pending: Pending


class TextEncoder:
    """Rows of whole texts, or of their tokens. Safe to use from several threads.

    Args:
        artifact: one with the program `encode` or `tokens`.
        num_threads: the most threads of a step; None: one per usable processor.

    Raises what `open_executor` does.
    """

    def __init__(self, artifact: Artifact, *, num_threads: int | None = None) -> None:
        limits = artifact.manifest.limits
        self.longest = min(limits.max_model_len, limits.max_num_batched_tokens)
        pooler = artifact.manifest.pooler
        self._stride = pooler.type_stride if pooler and pooler.types > 1 else 0
        self._vocab_size = artifact.manifest.model.vocab_size
        self._limits = limits
        self.program = artifact.manifest.main
        self._executor: Executor = open_executor(
            artifact, max_model_len=limits.max_model_len, num_threads=num_threads
        )
        self._waiting: deque[_Job] = deque()
        self._turn = Lock()
        self._counted = Tally(int)
        self._running = 0
        self._inputs = 0  # which of the executor's two are filled next

    def run(self, texts: Sequence[EncodedText], stopped: Stopped = never) -> Float32:
        """The rows of some texts, float32 [texts, columns], in their order.

        Their bits depend on neither the other texts nor other callers. Texts that have not begun
        are left out once `stopped` says so.

        Raises RequestError, with nothing run, for a text that no step has room for, or where it was
        stopped; UsageError after `close`.
        """
        rows = self._results(self.program, texts, stopped)
        return np.concatenate(rows).reshape(len(rows), -1) if rows else np.empty((0, 0), np.float32)

    def run_tokens(self, texts: Sequence[EncodedText], stopped: Stopped = never) -> list[Float32]:
        """The rows of all tokens of some texts, float32 [tokens, columns] each, in their order.

        As `run`; also raises UsageError for an artifact without the program `tokens`.
        """
        if self.program != TOKENS.name:
            with self._turn:
                self._executor.open(TOKENS.name)
        return self._results(TOKENS.name, texts, stopped)

    def _results(
        self, program: str, texts: Sequence[EncodedText], stopped: Stopped
    ) -> list[Float32]:
        for text in texts:
            self.check(text)
        jobs = [_Job(text, program, stopped) for text in texts]
        self._waiting.extend(jobs)
        while any(job.result is None for job in jobs):
            with self._turn:
                if any(job.result is None for job in jobs):
                    self._work(jobs)
        return [_result(job) for job in jobs]

    def check(self, text: EncodedText) -> None:
        """Raises RequestError for a text that can never be run."""
        count = len(text.tokens)
        if not 0 < count <= self.longest:
            raise RequestError(
                f"a text of {count} tokens",
                hint=f"A text has 1 to {self.longest} tokens here. Cut it, or ask for truncation.",
            )
        if text.unpooled >= count:
            raise RequestError(
                f"a text of {count} tokens, of which none is behind its prompt",
                hint="The model leaves out the prompt. Give a text that is not empty.",
            )
        least, most = min(text.tokens), max(text.tokens)
        if least < 0 or most >= self._vocab_size:
            raise RequestError(
                f"token {least if least < 0 else most}",
                hint=f"The vocabulary has the tokens 0 to {self._vocab_size - 1}.",
            )

    def counters(self) -> EngineCounters:
        """Steps and texts so far."""
        return EngineCounters(
            num_running=self._running, num_waiting=len(self._waiting), **self._counted
        )

    def close(self) -> None:
        """Frees everything; a second call does nothing."""
        with self._turn:
            self._executor.close()

    def _work(self, jobs: Sequence[_Job]) -> None:
        """Runs steps until these are done. While one runs, the next is laid out."""
        flight: _Flight | None = None
        while flight or any(job.result is None for job in jobs):
            found = self._filled() if any(job.result is None for job in jobs) else []
            if flight:
                _deliver(flight)
                self._running = 0
                self._counted["num_finished"] += len(flight.jobs)
            flight = self._begin(found) if found else None

    def _filled(self) -> list[_Job]:
        """The texts of the next step, laid out in its inputs. All are of one program."""
        found: list[_Job] = []
        room = self._limits.max_num_batched_tokens
        while self._waiting and len(found) < self._limits.max_num_seqs:
            job = self._waiting[0]
            if len(job.text.tokens) > room or (found and job.program != found[0].program):
                break
            job = self._waiting.popleft()
            if job.stopped():
                job.result = RequestError("nobody waits for this text any more")
                continue
            found.append(job)
            room -= len(job.text.tokens)
        if found:
            self._fill(self._inputs_of(found[0].program), found)
        return found

    def _inputs_of(self, program: str) -> StepInputs:
        """The inputs that are filled next, of a program that is opened when it is first needed."""
        main = program == self.program
        opened = self._executor if main else self._executor.open(program)
        return opened.inputs[self._inputs]

    def _fill(self, inputs: StepInputs, jobs: Sequence[_Job]) -> None:
        inputs.clear()
        tokens, spans = inputs["tokens"], inputs["spans"]
        begin = 0
        for index, job in enumerate(jobs):
            text = job.text
            end = begin + len(text.tokens)
            tokens[begin:end] = text.tokens
            spans[index] = begin, end, text.unpooled
            if "positions" in inputs:
                positions = inputs["positions"]
                positions[begin:end] = np.arange(end - begin)
                if text.second and self._stride:
                    positions[begin + text.second : end] += self._stride
            begin = end
        inputs.num_tokens, inputs.num_seqs = begin, len(jobs)

    def _begin(self, jobs: list[_Job]) -> _Flight | None:
        inputs = self._inputs_of(jobs[0].program)
        self._inputs = 1 - self._inputs
        self._counted["num_steps"] += 1
        self._counted["num_computed_tokens"] += inputs.num_tokens
        self._running = len(jobs)
        try:
            return _Flight(jobs, self._executor.submit(inputs, ALL, beside=bool(self._waiting)))
        except IngotError as error:
            for job in jobs:
                job.result = error
            return None


def _deliver(flight: _Flight) -> None:
    """Waits for a step, and hands its texts their rows."""
    try:
        (rows,) = flight.pending.wait().rows.values()
        rows = rows.copy()
    except BaseException as error:
        for job in flight.jobs:
            job.result = error
        if not isinstance(error, IngotError):
            raise
        return
    for job, result in zip(flight.jobs, _parts(flight.jobs, rows), strict=True):
        job.result = result


def _parts(jobs: Sequence[_Job], rows: Float32) -> Sequence[Float32]:
    """What each text gets of the rows of a step: one, or those of its tokens."""
    if jobs[0].program != TOKENS.name:
        return [*rows]
    ends = np.cumsum([len(job.text.tokens) for job in jobs])
    return np.split(rows, ends[:-1])


def _result(job: _Job) -> Float32:
    """What a text got. Raises what its step has raised."""
    if isinstance(job.result, BaseException):
        raise job.result
    assert job.result is not None, "it is done"
    return job.result
