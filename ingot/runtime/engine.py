"""The engine: sequences in, one step at a time, tokens out."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ingot.errors import IngotError, InternalError, RequestError
from ingot.runtime.batch import BatchBuilder
from ingot.runtime.executor import Executor, Float32
from ingot.runtime.page_table import PageTable
from ingot.runtime.params import SamplingParams
from ingot.runtime.sampler import Draw, Sampler
from ingot.runtime.scheduler import Chunk, Scheduler
from ingot.runtime.sequence import Sequence

_SCRATCH = -1  # the sequence id of `logits`


class Engine:
    """Advances all sequences by steps. Not safe for several threads at once.

    Args:
        max_model_len: the most tokens a sequence can have, prompt included.
        eos_token_ids: tokens that end a sequence unless it ignores them.
        seed: draws of requests without a seed of their own depend on it.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        max_model_len: int,
        eos_token_ids: Iterable[int] = (),
        seed: int = 0,
    ) -> None:
        limits = executor.limits
        self.max_model_len = max_model_len
        self.eos_token_ids = tuple(eos_token_ids)
        self.seed = seed
        self.pages = PageTable(executor.num_pages, limits.page_size)
        self.scheduler = Scheduler(
            self.pages,
            max_num_seqs=min(limits.max_num_seqs, limits.max_logit_rows),
            max_num_tokens=limits.max_num_batched_tokens,
        )
        self._executor = executor
        self._sampler = Sampler(executor.vocab_size, self.eos_token_ids, executor.kernels)
        self._batch = BatchBuilder(executor.inputs, limits.page_size)
        self._max_logit_rows = min(limits.max_logit_rows, limits.max_num_batched_tokens)
        self._num_added = 0

    @property
    def has_unfinished(self) -> bool:
        return bool(self.scheduler.running or self.scheduler.waiting)

    def check(self, token_ids: list[int], params: SamplingParams | None = None) -> None:
        """Raises RequestError for a prompt that cannot be served."""
        if not token_ids:
            raise RequestError("the prompt is empty", hint="Give at least one token.")
        vocab_size = self._executor.vocab_size
        low, high = min(token_ids), max(token_ids)
        if low < 0 or high >= vocab_size:
            raise RequestError(
                f"the prompt has token {low if low < 0 else high}",
                hint=f"The vocabulary has the tokens 0 to {vocab_size - 1}.",
            )
        # A completion needs room for one token; `logits` does not.
        room = self.max_model_len - (params is not None)
        if len(token_ids) > room:
            raise RequestError(
                f"the prompt has {len(token_ids)} tokens",
                hint=f"At most {room} fit, as max_model_len is {self.max_model_len}.",
            )
        for token in params.stop_token_ids if params else ():
            if token >= vocab_size:
                raise RequestError(
                    f"stop_token_ids has {token}",
                    hint=f"The vocabulary has the tokens 0 to {vocab_size - 1}.",
                )

    def add(self, token_ids: list[int], params: SamplingParams) -> Sequence:
        """Adds a request; its Sequence is filled as steps go by. Raises RequestError."""
        self.check(token_ids, params)
        max_len = min(self.max_model_len, len(token_ids) + params.max_tokens)
        # With a seed of its own a request draws the same wherever and whenever it runs.
        key = 0 if params.seed is not None else self._num_added + 1
        seed = self.seed if params.seed is None else params.seed
        sequence = Sequence(self._num_added, list(token_ids), params, max_len, key, seed)
        self._num_added += 1
        self.scheduler.add(sequence)
        return sequence

    def abort(self, sequence: Sequence) -> None:
        """Ends a request at once and frees its pages; a finished one stays as it is."""
        if not sequence.finished:
            self.finish(sequence, "abort")

    def finish(self, sequence: Sequence, reason: str, stop_reason: str | int | None = None) -> None:
        """Ends a request for a reason that only its owner can see, such as a stop string."""
        sequence.finish_reason = reason  # type: ignore[assignment]
        sequence.stop_reason = stop_reason
        self.scheduler.remove(sequence)

    def step(self) -> list[Sequence]:
        """Runs one step; returns the sequences that got a token or an error in it."""
        chunks = self.scheduler.schedule()
        if not chunks:
            if self.has_unfinished:
                raise InternalError("no sequence can run")
            return []
        try:
            return self._run(chunks)
        except BaseException:
            # Whatever the step has half done (Ctrl-C, kernels that refuse it) is computed again:
            # the tokens of the sequences are all that counts.
            self.scheduler.free_up(self.pages.num_pages)
            raise

    def logits(self, token_ids: list[int], chunk_tokens: int | None = None) -> Float32:
        """Logits [T, V] of every position, in chunks of `chunk_tokens` (default: the largest).

        Sequences that are under way give up their pages if they must, and go on afterwards.
        """
        self.check(token_ids)
        most = min(chunk_tokens or self._max_logit_rows, self._max_logit_rows)
        result = np.empty((len(token_ids), self._executor.vocab_size), np.float32)
        self.scheduler.free_up(self.pages.num_needed(len(token_ids)))
        self.pages.grow(_SCRATCH, len(token_ids))
        try:
            page_ids = self.pages.page_ids(_SCRATCH)
            for start in range(0, len(token_ids), most):
                chunk = token_ids[start : start + most]
                self._batch.clear()
                self._batch.append(chunk, start, page_ids, len(chunk))
                result[start : start + len(chunk)] = self._executor.run()
        finally:
            self.pages.release(_SCRATCH)
        return result

    def _run(self, chunks: list[Chunk]) -> list[Sequence]:
        self._batch.clear()
        for chunk in chunks:
            self._append(chunk)
        logits = self._executor.run()
        self.scheduler.advance(chunks)
        ready = [chunk.sequence for chunk in chunks if chunk.wants_logits]
        for sequence, draw in zip(ready, self._sampler.sample(logits, ready), strict=True):
            self._take(sequence, draw)
        return ready

    def _append(self, chunk: Chunk) -> None:
        sequence, start = chunk.sequence, chunk.sequence.num_computed
        self._batch.append(
            sequence.token_ids[start : start + chunk.num_tokens],
            start,
            self.pages.page_ids(sequence.sequence_id),
            int(chunk.wants_logits),
        )

    def _take(self, sequence: Sequence, draw: Draw | IngotError) -> None:
        params = sequence.params
        stops = params.stop_token_ids if params.ignore_eos else self._stops(params)
        if isinstance(draw, IngotError):  # one request's trouble, not the others'
            sequence.error = draw
            self.scheduler.remove(sequence)
            return
        sequence.token_ids.append(draw.token)
        if params.logprobs is not None:
            sequence.logprobs.append(draw.logprobs)
            sequence.cumulative_logprob += draw.logprobs[draw.token].logprob
        if draw.token in stops:
            own = draw.token in params.stop_token_ids
            self.finish(sequence, "stop", draw.token if own else None)
        elif len(sequence.token_ids) >= sequence.max_len:
            self.finish(sequence, "length")

    def _stops(self, params: SamplingParams) -> tuple[int, ...]:
        return (*self.eos_token_ids, *params.stop_token_ids)
