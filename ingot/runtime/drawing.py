"""From logits to tokens: what follows when the kernels have run a step."""

from __future__ import annotations

from time import perf_counter
from typing import Protocol

import numpy as np

from ingot.errors import IngotError
from ingot.runtime.executor import Float32
from ingot.runtime.logits_cache import LogitsCache
from ingot.runtime.metrics import Tally
from ingot.runtime.output import Draw, FinishReason
from ingot.runtime.sampler import Sampler
from ingot.runtime.scheduler import Chunk, Scheduler
from ingot.runtime.sequence import Sequence

MAX_KNOWN = 16  # requests whose known logits are drawn from before a step


class Owner(Protocol):
    """What drawing needs of the engine."""

    scheduler: Scheduler
    eos_token_ids: tuple[int, ...]

    def finish(
        self, sequence: Sequence, reason: FinishReason, stop_reason: str | int | None = None
    ) -> None: ...
    def fail(self, sequence: Sequence, error: IngotError) -> None: ...


class Drawing:
    """Draws the next tokens, and ends the sequences that they end."""

    def __init__(
        self, owner: Owner, sampler: Sampler, tally: Tally, logits_cache: LogitsCache
    ) -> None:
        self._owner = owner
        self._tally = tally
        self._logits_cache = logits_cache
        self._sampler = sampler
        self._known: list[tuple[Sequence, Float32]] = []

    def look_up(self, sequence: Sequence) -> None:
        """Notes the sequence for `draw_known` if the logits of its prompt are cached."""
        if not sequence.num_unscored:
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
            # One that was quick to run computes its prompt as any other.
            if not sequence.finished and not sequence.is_running and not sequence.num_generated:
                family = _family(sequence)
                ready += family
                rows += [logits] * len(family)
                for member in family:
                    member.num_cached = member.num_prompt
        return self._accept(ready, np.stack(rows)) if ready else []

    def draw(self, chunks: list[Chunk], logits: Float32) -> list[Sequence]:
        """Draws for the chunks of a step that has run; logits has their rows, one after another.

        Returns the sequences that got a token or an error.
        """
        ready: list[Sequence] = []
        rows: list[int] = []
        end = 0
        for chunk in chunks:
            sequence = chunk.sequence
            end += chunk.num_rows
            if sequence.finished:  # while the step ran
                continue
            if chunk.num_rows > chunk.draws:
                self._score_prompt(chunk, logits[end - chunk.num_rows : end])
            if not chunk.draws:
                continue
            if not sequence.num_generated:
                self._logits_cache.put(sequence.token_ids, sequence.salt, logits[end - 1])
                family = _family(sequence)
                ready += family
                rows += [end - 1] * len(family)
            else:
                ready.append(sequence)
                rows.append(end - 1)
        if rows != list(range(len(logits))):
            logits = logits[rows]
        return self._accept(ready, logits)

    def _accept(self, ready: list[Sequence], logits: Float32) -> list[Sequence]:
        began = perf_counter()
        draws = self._sampler.sample(logits, ready)
        now = perf_counter()
        self._tally.sampler_seconds += now - began
        for sequence, draw in zip(ready, draws, strict=True):
            self._take(sequence, draw, now)
            self._join(sequence)
        return ready

    def _take(self, sequence: Sequence, draw: Draw | IngotError, now: float) -> None:
        """Appends a token, and ends the sequence if it is the last."""
        sequence.num_pending = 0
        if isinstance(draw, IngotError):  # one request's trouble, not the others'
            self._owner.fail(sequence, draw)
            return
        token, token_ids, times = draw.token, sequence.token_ids, sequence.times
        token_ids.append(token)
        self._tally.num_generated_tokens += 1
        times.last_token = now
        if not times.first_token:
            times.first_token = now
        if draw.logprobs:
            sequence.logprobs.append(draw.logprobs)
            sequence.cumulative_logprob += draw.logprobs[token].logprob
        if token in sequence.stop_ids:
            own = token in sequence.params.stop_token_ids
            self._owner.finish(sequence, "stop", token if own else None)
        elif len(token_ids) >= sequence.max_len:
            self._owner.finish(sequence, "length")

    def _join(self, sequence: Sequence) -> None:
        """A sibling that has its first token no longer waits for its parent."""
        parent = sequence.parent
        if parent is not None:
            parent.siblings.remove(sequence)
            sequence.parent = None
            sequence.times.started = parent.times.started
            if not sequence.finished:
                self._owner.scheduler.fork(parent, sequence)

    def _score_prompt(self, chunk: Chunk, logits: Float32) -> None:
        """Adds the log-probabilities of prompt tokens; row i belongs to token first + i."""
        sequence = chunk.sequence
        first, begin = chunk.end - chunk.num_rows, len(sequence.prompt_logprobs)
        end = min(chunk.end, sequence.num_prompt - 1)
        if begin < end:
            sequence.prompt_logprobs += self._sampler.prompt_logprobs(
                logits[begin - first : end - first],
                sequence.token_ids[begin + 1 : end + 1],
                sequence.params.prompt_logprobs or 0,
            )


def _family(sequence: Sequence) -> list[Sequence]:
    """A sequence and its siblings. It comes last: they share its pages while it has them."""
    return [*(s for s in sequence.siblings if not s.finished), sequence]
