"""Records of sequences: where they are kept, what is given up, and that no bit depends on it."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from ingot.artifact.reader import Artifact
from ingot.errors import InternalError, RequestError
from ingot.runtime.beam_search import BeamSearchParams
from ingot.runtime.config import EngineConfig
from ingot.runtime.engine import Engine
from ingot.runtime.llm import LLM
from ingot.runtime.params import SamplingParams
from ingot.runtime.pool_size import PoolSize
from ingot.runtime.prefix_cache import PrefixPage
from ingot.runtime.scheduler import Scheduler
from ingot.runtime.slot_table import SlotTable
from ingot.runtime.snapshots import Snapshot, Snapshots
from ingot.runtime.speculation import Speculation
from tests.runtime.fake_model import EOS, PAGE_SIZE, VOCAB, greedy, make_plan, write_fake
from tests.runtime.fake_model import RECORDS as RECORD_STATES
from tests.runtime.far_executor import FarExecutor
from tests.runtime.speculated import SPECULATIVE, Truth, outcome, requests
from tests.support.core import core

KINDS = {"pages and records": (0,), "records alone": ()}
MOST = 40  # tokens of a request
ANY = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)


@pytest.fixture(scope="module")
def slotted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("slotted")
    return {
        kind: write_fake(folder / f"{len(windows)}.ingot", windows=windows, slotted=True)
        for kind, windows in KINDS.items()
    }


@pytest.fixture(params=KINDS)
def artifact(request: pytest.FixtureRequest, slotted: dict[str, Path]) -> Path:
    return slotted[request.param]


def pages_of(count: int, first: int = 0) -> list[PrefixPage]:
    """A chain of known pages."""
    chain: list[PrefixPage] = []
    for number in range(first, first + count):
        parent = chain[-1] if chain else None
        chain.append(PrefixPage(number, number, parent, b"", b""))
    return chain


def add(snapshots: Snapshots, page: PrefixPage, position: int) -> Snapshot:
    snapshot = Snapshot(slot=page.page_id, position=position)
    snapshots.add(snapshot, page, page.parent)
    return snapshot


def test_a_snapshot_costs_what_lies_between_it_and_the_one_before():
    snapshots, chain, other = Snapshots(), pages_of(8), pages_of(3, 10)
    last, first = add(snapshots, chain[7], 32), add(snapshots, chain[1], 8)
    alone = add(snapshots, other[2], 12)
    assert (first.cost, last.cost, alone.cost) == (8, 24, 12)
    middle = add(snapshots, chain[4], 20)
    assert (middle.cost, last.cost) == (12, 12), "a chain that is split keeps what it has"
    snapshots.remove(middle)
    snapshots.remove(first)
    assert last.cost == 32 and len(snapshots) == 2


def test_what_costs_least_is_given_up_first_and_of_equals_the_oldest():
    snapshots, chains = Snapshots(), [pages_of(4, 10 * n) for n in range(4)]
    for chain, length in zip(chains, (2, 1, 1, 3), strict=True):
        add(snapshots, chain[length - 1], 4 * length)
    snapshots.use(chains[1][0])
    assert [snapshots.give_up() for _ in range(4)] == [20, 10, 1, 32]


def test_what_nobody_finds_any_more_goes_before_all_others():
    snapshots, (cheap, *_), dear = Snapshots(), pages_of(1), pages_of(9, 10)
    add(snapshots, cheap, 4)
    add(snapshots, dear[-1], 36)
    dear[-1].known = False
    assert snapshots.give_up() == 18


def test_what_was_dear_once_does_not_stay_for_ever():
    snapshots, dear = Snapshots(), pages_of(10)
    add(snapshots, dear[-1], 40)
    given_up = []
    for number in range(1, 13):
        add(snapshots, pages_of(1, 100 * number)[0], 4)
        given_up.append(snapshots.give_up())
    assert 9 in given_up[8:] and 9 not in given_up[:8]


def test_of_what_a_sequence_leaves_on_its_way_the_newest_stays():
    slots, chain = SlotTable(9), pages_of(4)
    slots.take(0)
    for number, page in enumerate(chain):
        slots.snapshot(0, 4 * (number + 1), stays=number == 1)
        slots.publish(0, 4 * (number + 1), page)
    assert [slots.has(page) for page in chain] == [False, True, False, True]
    slots.take(1, chain[3])
    slots.snapshot(0, 20, stays=False)
    slots.publish(0, 20, pages_of(5)[4])
    assert slots.has(chain[3]), "another sequence went on from it"
    slots.check()


def test_two_steps_under_way_keep_a_record_each():
    slots, chain = SlotTable(9), pages_of(2)
    slots.take(0)
    slots.snapshot(0, 4)
    slots.snapshot(0, 8)
    slots.publish(0, 4, chain[0])
    slots.publish(0, 8, chain[1])
    assert slots.has(chain[0]) and slots.has(chain[1])


# What is found again.


def cached(llm: LLM, *prompts: list[int], max_tokens: int = 1) -> list[int]:
    """How many tokens each prompt finds computed, one after the other."""
    params = replace(ANY, max_tokens=max_tokens)
    return [llm.generate([prompt], params)[0].num_cached_tokens for prompt in prompts]


def tail(number: int) -> list[int]:
    return [100 + number] * 11


STEM = [*range(3, 22)]  # four pages, and a part


def finds_the_answer(path: Path) -> bool:
    """The next turn of a chat goes on from the last border of the answer."""
    with LLM(path) as llm:
        answer = llm.generate([STEM], replace(ANY, max_tokens=14))[0].outputs[0].token_ids
        so_far = STEM + answer
        return cached(llm, [*so_far, 5, 6, 7]) == [(len(so_far) - 1) // PAGE_SIZE * PAGE_SIZE]


def finds_the_stem(path: Path) -> bool:
    """Of prompts whose ends are their own, the third finds what they have in common."""
    with LLM(path) as llm:
        return cached(llm, *(STEM + tail(n) for n in range(4))) == [0, 0, 16, 16]


def finds_both_parts(path: Path) -> bool:
    """A snapshot in the middle of a chain does not cost the one at its end."""
    with LLM(path) as llm:
        prompts = (STEM + tail(1), STEM + tail(2), STEM + tail(3), STEM + tail(1))
        return cached(llm, *prompts) == [0, 0, 16, 28]


def finds_marks(path: Path) -> bool:
    """A position that a request names is found by the next one already."""
    with LLM(path) as llm:
        marked = {"prompt_token_ids": STEM + tail(1), "snapshot_at": [10]}
        return cached(llm, marked, STEM[:10] + tail(2)) == [0, 8]


FOUND = {each.__name__: each for each in (
    finds_the_answer, finds_the_stem, finds_both_parts, finds_marks,
)}  # fmt: skip


@pytest.mark.parametrize("oracle", FOUND)
def test_what_was_computed_is_found(artifact, oracle):
    assert FOUND[oracle](artifact)


def test_right_guesses_stop_at_the_border_where_the_record_is_kept(artifact):
    def right(self, sequences, room):
        return [greedy(s.token_ids, 6)[:room] for s in sequences]

    with patch.object(Speculation, "drafts", right), LLM(artifact, config=SPECULATIVE) as llm:
        answer = llm.generate([STEM], replace(ANY, max_tokens=14))[0].outputs[0].token_ids
        assert llm.counters().num_accepted_tokens > 5
        so_far = STEM + answer
        assert cached(llm, [*so_far, 5, 6]) == [(len(so_far) - 1) // PAGE_SIZE * PAGE_SIZE]


def no_end(monkeypatch):
    """Only what steps of prompts leave is kept."""
    keep = Scheduler._snapshot
    monkeypatch.setattr(
        Scheduler, "_snapshot", lambda self, s: None if s.num_generated else keep(self, s)
    )


def own_borders(monkeypatch):
    """The only border that counts lies in the request's own tokens."""
    monkeypatch.setattr(Scheduler, "_leaves_at", lambda self, s, position: None)


def never_true(monkeypatch):
    """What asks for a snapshot never finds one."""
    monkeypatch.setattr(SlotTable, "has", lambda self, name: False)


def split_loses(monkeypatch):
    """A snapshot in the middle of a chain takes the place of those behind it."""
    put = Snapshots.add

    def add_alone(self, snapshot, name, above):
        put(self, snapshot, name, above)
        for other in [each for each in self if each.base is snapshot]:
            del self._all[other.name]

    monkeypatch.setattr(Snapshots, "add", add_alone)


def no_marks(monkeypatch):
    """What requests name is not looked at."""
    monkeypatch.setattr(
        Scheduler, "add", lambda self, s: (s.borders.clear(), self.waiting.append(s))
    )


@pytest.mark.parametrize(
    ("fault", "oracle"),
    [
        (no_end, finds_the_answer), (own_borders, finds_the_stem), (never_true, finds_the_stem),
        (never_true, finds_the_answer), (split_loses, finds_both_parts), (no_marks, finds_marks),
    ],
)  # fmt: skip
def test_what_is_not_found_any_more_is_noticed(slotted, monkeypatch, fault, oracle):
    """The negative controls."""
    fault(monkeypatch)
    assert not oracle(slotted["records alone"])


def test_hits_and_what_they_miss_are_counted(artifact):
    with LLM(artifact) as llm:
        cached(llm, STEM + tail(1), STEM + tail(2), STEM + tail(3), [200] * 9)
        counters = llm.counters().snapshots
    assert (counters.num_hits, counters.num_misses) == (1, 3)
    assert (counters.num_wanted, counters.num_lost_tokens) == (1, 16)
    assert counters.num_entries == 5 and counters.num_evictions == 0


def test_positions_of_snapshots_are_checked(artifact):
    with LLM(artifact) as llm:
        for wrong in (3, [-1], ["a"], [True], [1.5], [1] * 65):
            with pytest.raises(RequestError, match="snapshot_at"):
                llm.generate([{"prompt_token_ids": [1], "snapshot_at": wrong}], ANY)
        cached(llm, {"prompt_token_ids": [1], "snapshot_at": [0, 10**9]})


def test_a_model_without_records_takes_positions_and_keeps_nothing(fake_artifact):
    assert finds_marks(fake_artifact), "pages know every token"
    with LLM(fake_artifact) as llm:
        cached(llm, {"prompt_token_ids": STEM, "snapshot_at": [10]}, STEM)
        assert llm.counters().snapshots.num_misses == 0


# Preemption and forks.


def test_a_sequence_without_pages_loses_nothing_when_it_gives_up_its_place(slotted):
    for config in (EngineConfig(), EngineConfig(prefix_cache=False)):
        with LLM(slotted["records alone"], config=config) as llm:
            engine = llm._engine
            sequence = engine.add(STEM, replace(ANY, max_tokens=20))
            while engine.has_unfinished:
                engine.step()
                if sequence.num_generated in (1, 6, 13) and sequence.is_running:
                    engine.scheduler.free_up(10**9)
                    engine._prepared = None
            assert sequence.generated_ids == greedy(STEM, 20)
            assert sequence.num_preemptions == 3
            assert engine.counters().num_computed_tokens == len(STEM) + 19


def test_a_sequence_with_pages_loses_less_than_a_page(slotted):
    with LLM(slotted["pages and records"]) as llm:
        engine = llm._engine
        sequence = engine.add(STEM, replace(ANY, max_tokens=20))
        while sequence.num_generated < 13:
            engine.step()
        before = engine.counters().num_computed_tokens
        engine.scheduler.free_up(10**9)
        engine._prepared = None
        while engine.has_unfinished:
            engine.step()
        assert sequence.generated_ids == greedy(STEM, 20)
        lost = engine.counters().num_computed_tokens - before - 7
        assert 0 <= lost < PAGE_SIZE


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_completions_share_the_prompt_that_they_begin_with(artifact, prefix_cache):
    params = SamplingParams(n=4, seed=1, max_tokens=3, ignore_eos=True)
    with LLM(artifact, config=EngineConfig(prefix_cache=prefix_cache)) as llm:
        engine = llm._engine
        first = engine.add(STEM, params)
        each = [first, *first.siblings]
        while first.siblings:
            engine.step()
        slots = engine._residence.slots
        forked = {slots.slot(s.sequence_id) for s in each[1:] if s.is_running}
        assert forked <= {to for _, to in slots.copies}, "copies are made with the next step"
        while engine.has_unfinished:
            engine.step()
    rest = len(STEM) % PAGE_SIZE if engine._residence.has_pages else 0
    assert engine.counters().num_computed_tokens == len(STEM) + 3 * rest + 4 * 2


def test_beams_are_those_of_a_model_that_keeps_no_records(artifact, fake_artifact):
    params = BeamSearchParams(beam_width=3, max_tokens=9)
    prompts = [{"prompt_token_ids": STEM}, {"prompt_token_ids": STEM[:7]}]
    found = []
    for path in (artifact, fake_artifact):
        with LLM(path) as llm:
            outputs = llm.beam_search(prompts, params)
            found.append([[s.tokens for s in o.sequences] for o in outputs])
    assert found[0] == found[1]


# Bits.

FEW = PoolSize(12, 5)
WAYS = {
    "room": ({}, True, None),
    "few slots": ({"chunk_tokens": 3}, True, FEW),
    "one slot": ({}, False, PoolSize(12, 1)),
    "overlap": ({"overlap": True, "max_num_seqs": 3}, True, FEW),
    "no prefixes": ({"prefix_cache": False}, True, FEW),
    "known logits": ({"logits_cache_bytes": 10**6}, False, FEW),
}


def poison(llm: LLM) -> None:
    """Spoils all free slots whenever records are copied, but those that are copied later."""
    executor, slots = llm._engine._executor, llm._engine._residence.slots
    copy, arrays = executor.pool.copy, executor.pool._slots

    def spoil(copies):
        copy(copies)
        for slot in {*slots._blank}.difference(source for source, _ in slots.copies):
            for begin, nbytes in arrays:
                ctypes.memset(begin + slot * nbytes, 0xFF, nbytes)

    executor.pool.copy = spoil


@pytest.mark.parametrize("way", core("room", "few slots", further=WAYS))
def test_requests_of_all_kinds_give_what_they_give_without_records(artifact, fake_artifact, way):
    switches, drafts, size = WAYS[way]
    asked = requests(7, 100, VOCAB - 20, MOST)
    prompts, params, priorities = (list(column) for column in zip(*asked, strict=True))
    with LLM(fake_artifact, max_model_len=MOST) as llm:
        expected = llm.generate(prompts, params)
    config = replace(SPECULATIVE if drafts else EngineConfig(), **switches)
    plan = make_plan(windows=(0,) if "1" in artifact.name else (), records=RECORD_STATES)
    nbytes = None if size is None else size.nbytes(plan)
    with (
        patch.object(Speculation, "drafts", Truth(expected, 0.3, VOCAB)),
        LLM(artifact, max_model_len=MOST, config=config, kv_cache_bytes=nbytes) as llm,
    ):
        poison(llm)
        outputs = llm.generate(prompts, params, priority=priorities)
        counters = llm.counters()
        llm._engine._residence.check()
    assert [outcome(each) for each in outputs] == [outcome(each) for each in expected]
    assert not drafts or counters.num_draft_tokens > counters.num_accepted_tokens > 10
    assert size is not None or counters.snapshots.num_hits > 5


def test_a_wrong_guess_that_stays_in_the_record_is_noticed(slotted, fake_artifact, monkeypatch):
    """The negative control."""
    monkeypatch.setattr(SlotTable, "rewind", lambda self, i: self._blank.append(self._spare.pop(i)))
    with pytest.raises((AssertionError, InternalError)):
        test_requests_of_all_kinds_give_what_they_give_without_records(
            slotted["records alone"], fake_artifact, "room"
        )


@pytest.mark.parametrize("num_slots", [3, 9])
def test_a_device_that_runs_ahead_gives_the_same(artifact, num_slots):
    """Steps are submitted before the host has seen the tokens of those before."""
    asked = [(STEM + tail(n % 3))[: 8 + 2 * n] for n in range(11)]
    asked += [STEM + tail(n) for n in range(3)]
    executor = FarExecutor(Artifact.open(artifact), max_model_len=48, kv_cache_bytes=10**6)
    executor.num_slots = num_slots
    engine = Engine(
        executor, max_model_len=48, eos_token_ids=(EOS,), config=EngineConfig(overlap=True)
    )
    params = replace(ANY, max_tokens=15)
    for _ in range(2):
        found = [engine.add(prompt, params) for prompt in asked]
        several = engine.add(STEM, replace(params, n=3, max_tokens=6))
        family = [several, *several.siblings]
        while engine.has_unfinished:
            engine.step()
            engine._residence.check()
        assert [s.generated_ids for s in found] == [greedy(prompt, 15) for prompt in asked]
        assert all(s.generated_ids == greedy(STEM, 6) for s in family)
    assert executor.num_ahead > 20 and engine.counters().snapshots.num_hits > num_slots / 2
    executor.close()
