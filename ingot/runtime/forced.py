"""Logits of given tokens, computed beside the requests: nothing is drawn, and nothing is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from ingot.runtime.arrays import Float32
from ingot.runtime.batch import BatchBuilder
from ingot.runtime.executor import Draws, Executor
from ingot.runtime.page_table import PageTable
from ingot.runtime.scheduler import Scheduler


@dataclass
class Forced:
    """Tokens that a step computes: those from `start` on, of a sequence that owns pages as `id`."""

    id: int
    token_ids: list[int]
    logits: Float32
    start: int = 0

    @property
    def num_left(self) -> int:
        return len(self.token_ids) - self.start


@dataclass(frozen=True)
class ForcedSteps:
    """Runs steps of given tokens. If pages are short, running requests give up theirs and are
    computed again later."""

    scheduler: Scheduler
    executor: Executor
    builder: BatchBuilder
    max_num_seqs: int
    max_num_rows: int

    @property
    def pages(self) -> PageTable:
        return self.scheduler.pages

    def logits(
        self, sequences: Sequence[list[int]], chunk_tokens: int | None, stopped: Callable[[], bool]
    ) -> list[Float32]:
        """Logits [T, V] of every position of each sequence, in chunks of `chunk_tokens`.

        As many sequences as fit run side by side. By default chunks are as large as they can be.
        Once `stopped` says so, no step runs and no request gives up its pages any more, and
        what is returned is incomplete.
        """
        most = min(chunk_tokens or self.max_num_rows, self.max_num_rows)
        vocab_size = self.executor.vocab_size
        forced = [
            Forced(-1 - n, token_ids, np.empty((len(token_ids), vocab_size), np.float32))
            for n, token_ids in enumerate(sequences)
        ]
        for group in self._groups(forced, stopped):
            try:
                while group and not stopped():
                    self._step(group, most)
                    group = [each for each in group if each.num_left]
            finally:
                for each in forced:
                    self.pages.release(each.id)
        return [each.logits for each in forced]

    def _groups(self, forced: list[Forced], stopped: Callable[[], bool]) -> Iterator[list[Forced]]:
        """Parts of the list whose sequences have room beside one another, which is made."""
        needed = [self.pages.most_of(len(each.token_ids)) for each in forced]
        first = 0
        while first < len(forced) and not stopped():
            self.scheduler.free_up(sum(needed[first : first + self.max_num_seqs]))
            last = next(
                last
                for last in count(min(len(forced), first + self.max_num_seqs), -1)
                if last == first + 1 or sum(needed[first:last]) <= self.pages.num_free
            )
            yield forced[first:last]
            first = last

    def _step(self, group: list[Forced], most: int) -> None:
        inputs = self.builder.inputs
        inputs.clear()
        computed = []
        for each in group:
            begin, room = inputs.num_tokens, self.max_num_rows - inputs.num_tokens
            chunk = each.token_ids[each.start : each.start + min(most, room)]
            if not chunk:
                break
            self.pages.drop_behind(each.id, each.start)
            self.pages.grow(each.id, each.start + len(chunk))
            self.builder.append(chunk, each.start, self.pages.page_ids(each.id), len(chunk))
            computed.append((each, slice(begin, begin + len(chunk))))
        logits = self.executor.submit(inputs, Draws(kept=slice(None))).wait().logits
        for each, rows in computed:
            num_rows = rows.stop - rows.start
            each.logits[each.start : each.start + num_rows] = logits[rows]
            each.start += num_rows
