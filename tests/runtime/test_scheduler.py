from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ingot.errors import InternalError
from ingot.runtime.page_table import PageTable
from ingot.runtime.params import SamplingParams
from ingot.runtime.scheduler import Scheduler
from ingot.runtime.sequence import Sequence

NUM_PAGES, PAGE_SIZE, MAX_LEN = 10, 4, 36


def sequence(number: int, length: int) -> Sequence:
    return Sequence(number, [1] * length, SamplingParams(), MAX_LEN, rank=(number, number))


def scheduler(num_pages=NUM_PAGES, max_num_seqs=4, max_num_tokens=11) -> Scheduler:
    pages = PageTable(num_pages, PAGE_SIZE)
    return Scheduler(
        pages, max_num_seqs=max_num_seqs, max_num_tokens=max_num_tokens, max_num_rows=max_num_seqs
    )


def run_step(s: Scheduler) -> list[Sequence]:
    """A step whose sequences all draw a token; returns those that are finished by it."""
    chunks = s.schedule()
    s.advance(chunks)
    done = []
    for chunk in chunks:
        if chunk.wants_logits:
            chunk.sequence.token_ids.append(1)
            if len(chunk.sequence.token_ids) >= chunk.sequence.max_len:
                s.remove(chunk.sequence)
                done.append(chunk.sequence)
    return done


class Model(RuleBasedStateMachine):
    """Any order of arrivals, steps and departures."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = scheduler()
        self.added: list[Sequence] = []
        self.alive: list[Sequence] = []

    @rule(length=st.integers(1, MAX_LEN - 1))
    def add(self, length):
        self.added.append(sequence(len(self.added), length))
        self.alive.append(self.added[-1])
        self.scheduler.add(self.added[-1])

    @precondition(lambda self: self.alive)
    @rule()
    def step(self):
        s = self.scheduler
        chunks = s.schedule()
        assert chunks, "somebody can always run"
        assert sum(chunk.num_tokens for chunk in chunks) <= s.max_num_tokens
        assert len({id(chunk.sequence) for chunk in chunks}) == len(chunks) <= s.max_num_seqs
        for chunk in chunks:
            q = chunk.sequence
            assert q in s.running
            assert 0 < chunk.num_tokens <= q.num_remaining
            assert chunk.wants_logits == (chunk.num_tokens == q.num_remaining)
            owned = len(s.pages.page_ids(q.sequence_id)) * PAGE_SIZE
            assert owned >= q.num_computed + chunk.num_tokens
        oldest = min(self.alive, key=lambda q: q.sequence_id)
        assert oldest in [chunk.sequence for chunk in chunks], "the oldest always advances"
        s.advance(chunks)
        for chunk in chunks:
            if chunk.wants_logits:
                chunk.sequence.token_ids.append(1)
                if len(chunk.sequence.token_ids) >= MAX_LEN:
                    self.leave(chunk.sequence)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def abort(self, data):
        self.leave(data.draw(st.sampled_from(self.alive)))

    @rule(count=st.integers(0, NUM_PAGES))
    def free_up(self, count):
        self.scheduler.free_up(count)
        assert self.scheduler.pages.num_free >= count

    def leave(self, q):
        self.scheduler.remove(q)
        self.alive.remove(q)

    @invariant()
    def pages_are_free_or_owned_once(self):
        self.scheduler.pages.check()

    @invariant()
    def everyone_is_in_one_place(self):
        s = self.scheduler
        everyone = [*s.running, *s.waiting]
        assert sorted(map(id, everyone)) == sorted(map(id, self.alive))
        assert all(q.num_computed == 0 for q in s.waiting)
        order = [q.sequence_id for q in s.running]
        assert order == sorted(order)
        if not everyone:
            assert s.pages.num_free == NUM_PAGES


Model.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
test_any_order_of_events = Model.TestCase


@given(st.lists(st.integers(1, MAX_LEN - 1), min_size=1, max_size=12), st.integers(9, 30))
@settings(max_examples=60, deadline=None)
def test_everyone_finishes_and_every_page_comes_back(lengths, num_pages):
    s = scheduler(num_pages)
    alive = [sequence(i, n) for i, n in enumerate(lengths)]
    for q in alive:
        s.add(q)
    steps = 0
    while s.running or s.waiting:
        run_step(s)
        steps += 1
        assert steps < 10_000
    assert all(len(q.token_ids) == MAX_LEN for q in alive)
    assert s.pages.num_free == num_pages


def test_decoding_sequences_come_before_prompts_and_both_share_a_step():
    s = scheduler()
    s.add(sequence(0, 3))
    run_step(s)
    s.add(sequence(1, 20))
    chunks = s.schedule()
    assert [(c.sequence.sequence_id, c.num_tokens, c.wants_logits) for c in chunks] == [
        (0, 1, True),
        (1, 10, False),
    ]


def test_a_prompt_is_computed_in_chunks_of_the_budget():
    s = scheduler()
    s.add(sequence(0, 25))
    sizes = []
    while s.running or s.waiting:
        chunks = s.schedule()
        sizes.append([(c.num_tokens, c.wants_logits) for c in chunks])
        s.advance(chunks)
        if chunks[0].wants_logits:
            s.remove(chunks[0].sequence)
    assert sizes == [[(11, False)], [(11, False)], [(3, True)]]


def test_the_latest_arrival_is_preempted_and_comes_back_first():
    s = scheduler(num_pages=9)
    for number in range(2):
        s.add(sequence(number, 15))
    s.add(sequence(2, 1))
    for _ in range(40):
        run_step(s)
        if s.num_preemptions:
            break
    assert s.num_preemptions == 1
    assert [q.sequence_id for q in s.waiting] == [1, 2] or s.waiting[0].sequence_id == 2
    assert s.waiting[0].num_computed == 0


def test_a_waiting_sequence_is_not_passed_by_a_shorter_one():
    s = scheduler()
    for number, length in enumerate((30, 30, 1)):
        s.add(sequence(number, length))
    s.schedule()
    assert [q.sequence_id for q in s.running] == [0]


def test_pages_cannot_be_taken_that_are_not_there():
    pages = PageTable(2, PAGE_SIZE)
    pages.grow(0, 5)
    assert pages.num_free == 0 and not pages.can_grow(1, 1) and pages.can_grow(0, 8)
    with pytest.raises(InternalError):
        pages.grow(1, 1)
    pages.release(0)
    pages.release(0)
    assert pages.num_free == 2


def test_check_finds_a_lost_and_a_doubled_page():
    pages = PageTable(3, PAGE_SIZE)
    pages.grow(0, 4)
    pages.check()
    page = pages._free_page_ids.pop()
    with pytest.raises(InternalError):
        pages.check()
    pages._free_page_ids += [page, page]
    with pytest.raises(InternalError):
        pages.check()


def test_freed_pages_are_used_again_first():
    pages = PageTable(100, PAGE_SIZE)
    pages.grow(0, 8)
    assert pages.page_ids(0).tolist() == [0, 1]
    pages.release(0)
    pages.grow(1, 8)
    assert pages.page_ids(1).tolist() == [0, 1]
