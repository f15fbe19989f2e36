"""The scheduler in a world where sequences have records: what a step reads is always its own."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from ingot.runtime.residence import Residence
from ingot.runtime.scheduler import Scheduler
from ingot.runtime.slot_table import SlotTable
from tests.runtime.test_scheduler import Machine
from tests.runtime.world import World
from tests.support.core import core


class Records(Machine):
    """Any order of the same events where there are slots, with pages beside them or without."""

    @initialize(
        seed=st.integers(0, 2**32),
        num_pages=st.integers(9, 16),
        chunk_tokens=st.sampled_from([None, 1, 3, 7]),
        hash_bits=st.sampled_from([1, 8, 8, 64]),
        uses_prefixes=st.sampled_from([True, True, True, False]),
        window=st.sampled_from([0, 0, 0, 1, 5, 8, 35]),
        drafts=st.sampled_from([False, False, True]),
        num_slots=st.sampled_from([1, 3, 5, 9, 14]),
        has_pages=st.booleans(),
    )
    def begin(self, window, has_pages, **options):
        self.world = World(window=window * has_pages, has_pages=has_pages, **options)

    @rule(count=st.integers(0, 6))
    def make_seats(self, count):
        self.world.scheduler.free_up(0, count)
        self.world.prepared = None


Records.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
test_any_order_of_events = Records.TestCase


@pytest.mark.parametrize(
    ("seed", "num_slots", "window", "has_pages"),
    core(
        (0, 5, 0, True),
        (1, 9, 0, False),
        further=[(2, 1, 0, True), (3, 4, 1, True), (4, 9, 5, True), (5, 3, 0, False)],
    ),
)
def test_everything_holds_with_records(seed, num_slots, window, has_pages):
    world = World(
        seed, num_pages=9 + seed, num_slots=num_slots, window=window, has_pages=has_pages,
        drafts=seed % 2 == 1,
    )  # fmt: skip
    while world.num_steps < 4000:
        world.run_random(500)
    world.finish()
    assert world.num_ended >= world.num_added > 100
    counters = world.residence.slots.snapshots.counters()
    assert min(counters.num_hits, counters.num_evictions) > 30 or num_slots < 4
    assert world.scheduler.num_preemptions > 10 or num_slots < 4
    assert world.num_kept > 50 or not world.drafts


def test_a_slot_is_all_that_sequences_of_one_step_are_limited_by():
    world = World(5, num_slots=2, num_pages=60)
    most = 0
    while world.num_steps < 500:
        world.run_random(50)
        most = max(most, len(world.scheduler.running))
    assert most == 2


def test_forks_behind_a_window_go_on_from_pages_that_are_there():
    for seed in range(8):
        world = World(seed, num_slots=9, num_pages=30, window=1, uses_prefixes=False)
        world.run_random(600)


def copied_late(monkeypatch):
    """Copies are made a step later than they are due."""
    take, late = Residence.take_copies, []

    def take_late(self):
        late.append(take(self))
        return late.pop(0) if len(late) > 1 else []

    monkeypatch.setattr(Residence, "take_copies", take_late)


def never_restored(monkeypatch):
    """A sequence that begins with known tokens is given a slot as it is."""
    take = SlotTable.take
    monkeypatch.setattr(SlotTable, "take", lambda self, i, after=None: take(self, i))


def cut_nowhere(monkeypatch):
    """Steps end where they like, and what they leave is kept as if it were of a border."""
    monkeypatch.setattr(Residence, "border", lambda self, n: n)


def counted_in_pages(monkeypatch):
    """Where a sequence goes on is told in pages, and taken for tokens."""
    start = Residence.start
    monkeypatch.setattr(
        Residence, "start", lambda self, i, prefix: start(self, i, prefix) // self.pages.page_size
    )


def of_a_neighbour(monkeypatch):
    """The record that is kept is that of another sequence of the step."""
    keep = SlotTable.snapshot

    def keep_other(self, sequence_id, position, *, stays=True):
        keep(self, sequence_id, position, stays=stays)
        if self.copies and len(self._held) > 1:
            others = [slot for each, slot in self._held.items() if each != sequence_id]
            self.copies[-1] = others[0], self.copies[-1][1]

    monkeypatch.setattr(SlotTable, "snapshot", keep_other)


def without_tails(monkeypatch):
    """A copy leaves out one of the arrays of a record."""

    def copy_part(self, copies):
        for source, to in copies:
            self.records[to] = self.records[source][0], self.records[to][1]

    monkeypatch.setattr(World, "_copy", copy_part)


def never_zeroed(monkeypatch):
    """A sequence that begins reads what its slot holds."""
    monkeypatch.setattr(World, "_read", lambda self, slot, start: self.records[slot])


def never_put_back(monkeypatch):
    """After a wrong guess the record stays as the guess has left it."""
    monkeypatch.setattr(SlotTable, "rewind", lambda self, i: self._blank.append(self._spare.pop(i)))


def never_guarded(monkeypatch):
    """The record that is put back was never copied."""
    monkeypatch.setattr(SlotTable, "guard", lambda self, i: None)


def kept_with_its_guesses(monkeypatch):
    """The record is kept before it is known whether the guesses that it has read are right."""
    advance = Scheduler.advance

    def keep_early(self, chunks):
        copies = advance(self, chunks)
        for chunk in chunks:
            if chunk.draft:
                end = chunk.end + len(chunk.draft)
                self.residence.snapshot(chunk.sequence.sequence_id, end)
        return copies

    monkeypatch.setattr(Scheduler, "advance", keep_early)


def set_aside_too_far(monkeypatch):
    """A sequence that gives up its place goes on a token later."""
    aside = SlotTable.set_aside
    monkeypatch.setattr(
        SlotTable, "set_aside", lambda self, i, position, page: aside(self, i, position + 1, page)
    )


FAULTS = (
    copied_late, never_restored, cut_nowhere, counted_in_pages, of_a_neighbour, without_tails,
    never_zeroed, never_put_back, never_guarded, kept_with_its_guesses, set_aside_too_far,
)  # fmt: skip


def run_worlds(count: int) -> None:
    for seed in range(count):
        world = World(
            seed, num_slots=9, num_pages=30 if seed % 2 else 12, has_pages=seed % 2 == 0,
            drafts=seed % 4 < 2,
        )  # fmt: skip
        world.run_random(1000)


@pytest.mark.parametrize("fault", FAULTS)
def test_records_that_are_not_the_sequences_own_are_caught(monkeypatch, fault):
    """The negative controls."""
    fault(monkeypatch)
    with pytest.raises((AssertionError, KeyError)):
        run_worlds(20)


def test_nothing_is_caught_where_nothing_is_wrong():
    run_worlds(8)
