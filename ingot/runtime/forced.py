"""Rows of given tokens, computed beside the requests: nothing is drawn, and nothing is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from ingot.runtime.arrays import Float32
from ingot.runtime.batch import BatchBuilder
from ingot.runtime.executor import Executor, StepWants
from ingot.runtime.initial_record import InitialRecord, lead_of
from ingot.runtime.residence import Residence
from ingot.runtime.scheduler import Scheduler

# Takes the rows of the next positions of a sequence.
Take = Callable[[Float32], None]


@dataclass
class Forced:
    """Tokens that a step computes: those from `start` on, of a sequence that owns pages as `id`.

    `take` is given the rows of the positions from `first` on. Before the first token its record is
    `initial`, or zeros.
    """

    id: int
    token_ids: list[int]
    take: Take
    first: int
    start: int = 0
    initial: InitialRecord | None = None

    @property
    def num_left(self) -> int:
        return len(self.token_ids) - self.start


@dataclass(frozen=True)
class ForcedSteps:
    """Runs steps of given tokens. If pages are short, running requests give up theirs and are
    computed again later.

    `builder` fills in the inputs of a program, and `output` is the one whose rows are given.
    """

    scheduler: Scheduler
    executor: Executor
    builder: BatchBuilder
    output: str
    max_num_seqs: int
    max_num_rows: int

    @property
    def residence(self) -> Residence:
        return self.scheduler.residence

    def run(
        self,
        sequences: Sequence[list[int]],
        first: Sequence[int],
        takes: Sequence[Take],
        chunk_tokens: int | None,
        stopped: Callable[[], bool],
    ) -> None:
        """Gives the rows of each sequence from its `first` position on, in chunks of
        `chunk_tokens`.

        As many sequences as fit run side by side. By default chunks are as large as they can be,
        and so are those of the tokens before `first`.
        Once `stopped` says so, no step runs and no request gives up its pages any more, and
        what was given is incomplete.
        """
        most = min(chunk_tokens or self.max_num_rows, self.max_num_rows)
        whole = chunk_tokens is None
        forced = [
            Forced(-1 - n, *each)
            for n, each in enumerate(zip(sequences, takes, first, strict=True))
        ]
        for group in self._groups(forced, stopped):
            try:
                while group and not stopped():
                    self.step(group, most, whole=whole)
                    group = [each for each in group if each.num_left]
            finally:
                for each in forced:
                    self.residence.release(each.id)

    def _groups(self, forced: list[Forced], stopped: Callable[[], bool]) -> Iterator[list[Forced]]:
        """Parts of the list whose sequences have room beside one another, which is made."""
        needed = [self.residence.pages.most_of(len(each.token_ids)) for each in forced]
        begin = 0
        while begin < len(forced) and not stopped():
            most = needed[begin : begin + self.max_num_seqs]
            self.scheduler.free_up(sum(most), len(most))
            end = next(
                end
                for end in count(begin + len(most), -1)
                if end == begin + 1 or self.residence.has_room(sum(needed[begin:end]), end - begin)
            )
            yield forced[begin:end]
            begin = end

    def step(self, group: Sequence[Forced], most: int, *, whole: bool) -> None:
        """Computes the next tokens of each, at most so many; `whole`: before `first` as well."""
        inputs = self.builder.inputs
        inputs.clear()
        computed, num_rows = [], 0
        for each in group:
            room = self.max_num_rows - inputs.num_tokens
            ahead = 0 if whole else each.first - each.start
            chunk = each.token_ids[each.start :][: min(ahead if ahead > 0 else most, room)]
            if not chunk:
                break
            self.residence.pages.drop_behind(each.id, each.start)
            self.residence.grow(each.id, each.start + len(chunk), each.initial)
            end = each.start + len(chunk)
            wanted = max(0, end - max(each.start, each.first))
            self.builder.append(chunk, each.start, each.id, wanted, lead_of(each.initial))
            computed.append((each, end, slice(num_rows, num_rows + wanted)))
            num_rows += wanted
        inputs.copies = self.residence.take_copies()
        found = self.executor.submit(inputs, StepWants(kept=slice(None))).wait().rows[self.output]
        for each, end, rows in computed:
            each.take(found[rows])
            each.start = end


def writer(array: Float32) -> Take:
    """Writes rows into an array, one after the other."""
    filled = 0

    def take(rows: Float32) -> None:
        nonlocal filled
        array[filled : filled + len(rows)] = rows
        filled += len(rows)

    return take
