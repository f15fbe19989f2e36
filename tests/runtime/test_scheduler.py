from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ingot.artifact.pages import most_pages
from ingot.runtime import prefix_cache
from ingot.runtime.config import EngineConfig
from ingot.runtime.page_table import PageTable
from ingot.runtime.params import SamplingParams
from ingot.runtime.residence import Residence
from ingot.runtime.scheduler import AGING, Scheduler
from ingot.runtime.sequence import Sequence
from tests.runtime.world import World
from tests.support.core import core

NUM_PAGES, PAGE_SIZE, MAX_LEN = 10, 4, 36
BURST = 50


class Machine(RuleBasedStateMachine):
    """Any order of events, one by one and in bursts: more than 10^5 steps in all."""

    @initialize(
        seed=st.integers(0, 2**32),
        num_pages=st.integers(9, 16),
        chunk_tokens=st.sampled_from([None, 1, 3, 7]),
        hash_bits=st.sampled_from([1, 8, 8, 64]),
        uses_prefixes=st.sampled_from([True, True, True, False]),
        window=st.sampled_from([0, 0, 0, 1, 5, 8, 35]),
        drafts=st.sampled_from([False, False, True]),
    )
    def begin(self, **options):
        self.world = World(**options)

    @rule(priority=st.integers(-2, 2), scored=st.booleans())
    def add(self, priority, scored):
        if len(self.world.alive) < 12:
            self.world.add(priority, scored)

    @rule(overlap=st.booleans())
    def step(self, overlap):
        self.world.step(overlap=overlap)

    @precondition(lambda self: self.world.alive)
    @rule(index=st.integers(0, 11))
    def abort(self, index):
        self.world.leave(self.world.alive[index % len(self.world.alive)])

    @rule(count=st.integers(0, NUM_PAGES))
    def preempt(self, count):
        self.world.scheduler.free_up(min(count, self.world.pages.num_pages))
        self.world.prepared = None
        assert self.world.pages.num_free >= count or count > self.world.pages.num_pages

    @rule()
    def forget(self):
        self.world.residence.forget_prefixes()

    @rule()
    def many(self):
        self.world.run_random(BURST)

    @invariant()
    def all_holds(self):
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self):
        if hasattr(self, "world"):
            self.world.finish()


Machine.TestCase.settings = settings(
    max_examples=100,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
test_any_order_of_events = Machine.TestCase


@pytest.mark.cases(core=1, thorough=3)
@pytest.mark.parametrize("seed", core(0, 1, further=range(10)))
def test_everything_holds_over_ten_thousand_steps(seed):
    world = World(seed, num_pages=9 + seed, chunk_tokens=[None, 1, 3][seed % 3])
    while world.num_steps < 10_000:
        world.run_random(1000)
    world.finish()
    assert world.num_ended >= world.num_added > 500
    assert world.scheduler.num_preemptions > 100
    counters = world.pages.prefix.counters()
    assert counters.num_hits > 300 and counters.num_evictions > 100


@pytest.mark.cases(core=2)
@pytest.mark.parametrize(("seed", "window"), list(enumerate([1, 2, 4, 5, 6, 7, 8])))
def test_sequences_longer_than_all_pages_run_behind_a_window(seed, window):
    """Everything holds, and 10 pages of 4 tokens serve sequences of up to 120."""
    num_pages = most_pages(120, 11, PAGE_SIZE, window)
    assert num_pages <= 10
    world = World(seed, num_pages=num_pages, max_len=120, window=window)
    while world.num_steps < 6000:
        world.run_random(500)
    world.finish()
    counters = world.pages.prefix.counters()
    assert world.num_ended > 100 and counters.num_hits > 50 and counters.num_evictions > 50
    assert world.scheduler.num_preemptions > 50


@pytest.mark.parametrize(("seed", "window"), core((0, 0), (1, 5), further=[(2, 1), (3, 8)]))
def test_everything_holds_with_drafts(seed, window):
    world = World(seed, num_pages=9 + seed, window=window, drafts=True)
    while world.num_steps < 2500:
        world.run_random(500)
    world.finish()
    assert world.num_kept > 200 and world.num_ended >= world.num_added > 100


def test_drafts_whose_pages_are_made_known_are_caught(monkeypatch):
    """The negative control: a draft may turn out wrong after its page has been found."""
    complete = Scheduler.complete

    def early(self, chunks):
        complete(self, chunks)
        for chunk in chunks:
            s = chunk.sequence
            if chunk.draft and s.is_running:
                computed = chunk.end + len(chunk.draft)
                tokens = [*s.token_ids[: chunk.end], *chunk.draft]
                self.pages.publish(s.sequence_id, tokens, computed, s.salt)

    monkeypatch.setattr(Scheduler, "complete", early)
    with pytest.raises(AssertionError):
        run_worlds(20, drafts=True)


@pytest.mark.parametrize(("num_pages", "drafted"), [(9, [0, 0]), (20, [0, 7])])
def test_drafts_take_what_room_a_step_leaves_and_no_pages_of_others(num_pages, drafted):
    rooms = []

    def guess(sequences, room):
        rooms.append(room)
        return [[9] * room, []]

    s = scheduler(
        num_pages=num_pages, max_num_seqs=2, max_num_tokens=16, max_num_rows=9, drafter=guess
    )
    for number, length in enumerate((11, 19)):  # three pages, and five
        s.add(sequence(number, length))
    while len(s.running) < 2 or s.running[-1].num_generated == 0:
        run_step(s)
    assert [len(chunk.draft) for chunk in s.schedule()] == drafted
    assert rooms[-1] == 7, "nine rows, of which two are the sequences' own"
    assert s.num_preemptions == 0


@pytest.mark.parametrize("off_by", [1, PAGE_SIZE])
def test_pages_that_are_dropped_too_early_are_caught(monkeypatch, off_by):
    """The negative control."""
    drop = PageTable.drop_behind
    monkeypatch.setattr(
        PageTable, "drop_behind", lambda self, s, position: drop(self, s, position + off_by)
    )
    with pytest.raises(AssertionError, match="another prefix"):
        run_worlds(40, window=5, num_pages=10)


def run_worlds(count, **options):
    for seed in range(count):
        World(seed, **options).run_random(1500)


@pytest.mark.parametrize("field", ["tokens", "parent", "salt"])
def test_a_page_that_is_found_by_its_hash_alone_is_caught(monkeypatch, field):
    """The negative control: each part of the comparison is needed, and the world sees it."""

    def careless(entry, parent, tokens, salt):
        return all(
            (
                field == "parent" or entry.parent is parent,
                field == "tokens" or entry.tokens == tokens,
                field == "salt" or entry.salt == salt,
            )
        )

    monkeypatch.setattr(prefix_cache, "_equal", careless)
    with pytest.raises(AssertionError):
        run_worlds(40, hash_bits=1, num_pages=30)


def test_pages_that_are_known_before_they_are_filled_are_caught(monkeypatch):
    """The negative control: a step's pages may only be published when it is over."""
    advance = Scheduler.advance

    def early(self, chunks):
        self.complete(chunks)
        for chunk in chunks:
            q = chunk.sequence
            if self.pages.page_ids(q.sequence_id):
                self.pages.publish(q.sequence_id, q.token_ids, len(q.token_ids), q.salt)
        return advance(self, chunks)

    monkeypatch.setattr(Scheduler, "advance", early)
    with pytest.raises(AssertionError):
        run_worlds(20)


def sequence(number: int, length: int, rank: int | None = None) -> Sequence:
    place = number if rank is None else rank
    return Sequence(number, [1] * length, SamplingParams(), MAX_LEN, rank=(place, number))


def scheduler(
    num_pages=NUM_PAGES,
    max_num_seqs=4,
    max_num_tokens=11,
    max_num_rows=None,
    chunk_tokens=None,
    prefix_cache=False,
    drafter=None,
) -> Scheduler:
    return Scheduler(
        Residence(PageTable(num_pages, PAGE_SIZE)),
        max_num_seqs=max_num_seqs,
        max_num_tokens=max_num_tokens,
        max_num_rows=max_num_rows or max_num_seqs,
        config=EngineConfig(prefix_cache=prefix_cache, chunk_tokens=chunk_tokens),
        drafter=drafter,
    )


def run_step(s: Scheduler) -> list[tuple[int, int, bool]]:
    """A step whose sequences all draw a token; returns its chunks."""
    chunks = s.schedule()
    s.advance(chunks)
    s.complete(chunks)
    for chunk in chunks:
        q = chunk.sequence
        q.num_pending = 0
        if chunk.draws:
            q.token_ids.append(1)
            if len(q.token_ids) >= q.max_len:
                s.remove(q)
    return [(c.sequence.sequence_id, c.end - c.start, c.draws) for c in chunks]


def test_decoding_sequences_come_before_prompts_and_both_share_a_step():
    s = scheduler()
    s.add(sequence(0, 3))
    run_step(s)
    s.add(sequence(1, 20))
    assert run_step(s) == [(0, 1, True), (1, 10, False)]


@pytest.mark.parametrize(("chunk", "sizes"), [(None, [11, 11, 3]), (4, [4, 4, 4, 4, 4, 4, 1])])
def test_a_prompt_is_computed_in_chunks(chunk, sizes):
    s = scheduler(chunk_tokens=chunk)
    s.add(sequence(0, 25))
    got = [run_step(s)[0] for _ in sizes]
    assert got == [(0, n, False) for n in sizes[:-1]] + [(0, sizes[-1], True)]


def test_the_last_in_rank_is_preempted_and_comes_back():
    s = scheduler(num_pages=9)
    for number in range(2):
        s.add(sequence(number, 15))
    s.add(sequence(2, 1))
    while not s.num_preemptions:
        run_step(s)
    assert s.waiting[0].num_computed == 0 and s.running[0].sequence_id == 0
    while s.running or s.waiting:
        run_step(s)
    assert s.pages.num_free == 9


def test_what_a_preempted_sequence_finds_again_does_not_count_as_cached():
    s, q = scheduler(prefix_cache=True), sequence(0, 11)
    s.add(q)
    run_step(s)
    s.free_up(NUM_PAGES)
    assert (q.num_preemptions, q.num_computed) == (1, 0)
    assert run_step(s) == [(0, 4, True)]  # its first two pages are found again
    assert q.num_cached == 0


def test_a_waiting_sequence_is_not_passed_by_a_shorter_one():
    s = scheduler()
    for number, length in enumerate((30, 30, 1)):
        s.add(sequence(number, length))
    s.schedule()
    assert [q.sequence_id for q in s.running] == [0]


def test_a_low_priority_waits_for_a_limited_number_of_others():
    s = scheduler(max_num_seqs=1, max_num_tokens=MAX_LEN)
    order = []
    s.add(sequence(0, MAX_LEN - 1, rank=0 + AGING))  # one level lower
    for number in range(1, 3 * AGING):
        s.add(sequence(number, MAX_LEN - 1))
        order += [number for number, *_ in run_step(s)]
    while s.waiting or s.running:
        order += [number for number, *_ in run_step(s)]
    assert order.index(0) in (AGING - 1, AGING)
    assert sorted(order) == list(range(3 * AGING))


def test_rows_of_prompt_logprobs_share_the_limit():
    s = scheduler(max_num_rows=6)
    scored = Sequence(0, [1] * 20, SamplingParams(prompt_logprobs=1), MAX_LEN)
    s.add(scored)
    s.add(sequence(1, 3))
    rows = []
    while len(scored.prompt_logprobs) < 19:
        chunks = s.schedule()
        assert sum(chunk.num_rows for chunk in chunks) <= 6
        s.advance(chunks)
        for chunk in chunks:
            if chunk.sequence is scored:
                rows.append(chunk.num_rows)
                count = min(chunk.end, 19) - (chunk.end - chunk.num_rows)
                scored.prompt_logprobs += [{}] * count
            elif chunk.draws:
                chunk.sequence.num_pending = 0
                chunk.sequence.token_ids.append(1)
    assert sum(rows) >= 19
