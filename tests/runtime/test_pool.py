"""Memory of pages is taken ahead: in their order, so much and no more, while nobody waits."""

from __future__ import annotations

import ctypes
import mmap
import threading
from queue import SimpleQueue

import pytest

from ingot.artifact.plan import StateArray
from ingot.runtime import engine_thread
from ingot.runtime.config import EngineConfig
from ingot.runtime.devices import memory, pool
from ingot.runtime.devices.memory import Region
from ingot.runtime.devices.pool import Pool
from ingot.runtime.llm import LLM
from ingot.runtime.page_table import PageTable
from ingot.runtime.params import SamplingParams
from ingot.runtime.pool_size import PoolSize
from tests.runtime.fake_model import LIMITS, PAGE_BYTES, PAGE_SIZE, greedy

STEP_PAGES = LIMITS.max_num_batched_tokens // PAGE_SIZE
PARAMS = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, detokenize=False)


@pytest.fixture
def touched(monkeypatch):
    """Where memory was taken ahead, and how much."""
    found: list[tuple[int, int]] = []

    def touch(region, address, nbytes):
        found.append((address - region.address, nbytes))
        return True

    monkeypatch.setattr(Region, "touch", touch)
    return found


def pool_of(page_sizes: list[int], num_pages: int, step_pages: int) -> Pool:
    arrays = [StateArray("paged", nbytes) for nbytes in page_sizes]
    return Pool(arrays, PoolSize(num_pages, 0), step_pages)


def touch_all(pool: Pool, num_used: int = 0, num_ready: int = 0) -> None:
    while pool.touch_ahead(num_used, num_ready):
        pass


def test_pieces_are_touched_page_by_page_as_many_as_a_step_fills(touched):
    pool = pool_of([64, 128], num_pages=10, step_pages=2)
    touch_all(pool)
    first, second = 0, 640  # the array of each state
    assert touched == [(first, 64), (second, 128), (first + 64, 64), (second + 128, 128)]
    assert not pool.touch_ahead(0, 0) and len(touched) == 4


def test_what_is_used_or_touched_already_is_not_touched_again(touched):
    pool = pool_of([64], num_pages=10, step_pages=3)
    touch_all(pool)
    touch_all(pool, num_used=2)
    assert touched == [(64 * page, 64) for page in (0, 1, 2, 3, 4)]
    touch_all(pool, num_used=7)  # two were used before anyone could touch them
    assert touched[5:] == [(64 * page, 64) for page in (7, 8, 9)], "and there are no more"


def test_pages_that_were_used_before_count(touched):
    pool = pool_of([64], num_pages=10, step_pages=3)
    touch_all(pool, num_used=4, num_ready=3)
    assert touched == []
    touch_all(pool, num_used=4, num_ready=2)
    assert touched == [(64 * 4, 64)]


def test_large_steps_touch_no_more_than_so_many_bytes(touched, monkeypatch):
    monkeypatch.setattr(pool, "MOST_AHEAD_BYTES", 1000)
    touch_all(pool_of([256, 64], num_pages=100, step_pages=50))
    assert sum(nbytes for _, nbytes in touched) == 3 * (256 + 64)


def test_a_model_without_states_has_nothing_to_touch(touched):
    touch_all(pool_of([], num_pages=10, step_pages=3))
    assert touched == []


def resident(region: Region) -> set[int]:
    """The huge pages of a region that have some memory."""
    bits = (ctypes.c_ubyte * (region.nbytes // mmap.PAGESIZE))()
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(region.address), region.nbytes, bits) == 0
    huge = memory.HUGE_PAGE_BYTES // mmap.PAGESIZE
    return {place // huge for place, bit in enumerate(bits) if bit & 1}


def test_the_system_gives_the_memory_of_the_piece_and_of_no_other():
    region = Region(8 * memory.HUGE_PAGE_BYTES, "a test")
    assert resident(region) == set()
    done = region.touch(region.address + 3 * memory.HUGE_PAGE_BYTES + 5, 100)
    assert resident(region) == ({3} if done else set())  # an old system does not
    region.close()


def test_a_pool_has_the_memory_of_its_first_pages_alone():
    pool = pool_of([memory.HUGE_PAGE_BYTES] * 2, num_pages=8, step_pages=3)
    given = pool.touch_ahead(0, 0)
    touch_all(pool)
    assert resident(pool.region) == ({0, 1, 2, 8, 9, 10} if given else set())


def test_what_memory_holds_stays():
    region = Region(memory.HUGE_PAGE_BYTES, "a test")
    region.floats(1, 4)[:] = [1, 2, 3, 4]
    region.touch(region.address, 16)
    assert region.floats(1, 4).tolist() == [[1, 2, 3, 4]]


def test_a_system_that_knows_no_such_request_is_asked_once(monkeypatch):
    asked = []
    real = memory._madvise
    monkeypatch.setattr(memory, "_POPULATE_WRITE", 9999)
    monkeypatch.setattr(memory, "_madvise", lambda *given: asked.append(given) or real(*given))
    pool = pool_of([mmap.PAGESIZE], num_pages=1024, step_pages=3)
    for num_used in range(8):
        assert not pool.touch_ahead(num_used, 0)
    assert len(asked) == 1 and resident(pool.region) == set()


def test_pages_are_used_for_the_first_time_in_order_and_after_those_that_were_used():
    pages = PageTable(20, PAGE_SIZE)
    pages.grow(0, 3 * PAGE_SIZE)
    pages.grow(1, 2 * PAGE_SIZE)
    assert (pages.num_used, pages.num_reusable) == (5, 0)
    pages.release(0)
    assert (pages.num_used, pages.num_reusable) == (5, 3)
    pages.grow(2, 4 * PAGE_SIZE)
    assert sorted(pages.page_ids(2)) == [0, 1, 2, 5]
    assert (pages.num_used, pages.num_reusable) == (6, 0)


def test_pages_that_the_prefix_cache_knows_are_not_the_next_to_be_used():
    pages = PageTable(20, PAGE_SIZE)
    pages.admit(0, 2 * PAGE_SIZE)
    pages.publish(0, [*range(2 * PAGE_SIZE)], 2 * PAGE_SIZE, b"")
    pages.release(0)
    assert (pages.num_used, pages.num_reusable) == (2, 0)
    pages.forget_prefixes()
    assert (pages.num_used, pages.num_reusable) == (2, 2)


class Idle:
    """A requests that has nothing to do but touch; `touch` is called with how often it did."""

    has_unfinished = closed = False

    def __init__(self, touch):
        self.touch, self.log = touch, []

    def touch_ahead(self):
        self.log.append("touched")
        assert len(self.log) < 100, "it goes on for ever"
        return self.touch(self.log.count("touched"))

    def close(self):
        self.closed = True


@pytest.fixture
def inbox(monkeypatch):
    monkeypatch.setattr(engine_thread, "IDLE_SECONDS", 0)
    return SimpleQueue()


def test_a_request_waits_for_no_more_than_the_piece_under_way(inbox):
    def touch(count):
        if count in (3, 5):
            inbox.put((lambda: requests.log.append("done")) if count == 3 else None)
        return True  # there is always more

    requests = Idle(touch)
    engine_thread._serve(requests, inbox)
    assert requests.log == [*["touched"] * 3, "done", *["touched"] * 2] and requests.closed


def test_nothing_is_touched_before_what_is_there_or_comes_at_once(inbox):
    requests = Idle(lambda count: True)
    inbox.put(lambda: requests.log.append("done"))
    inbox.put(None)
    engine_thread._serve(requests, inbox)
    assert requests.log == ["done"]


def test_an_engine_that_has_touched_enough_rests(inbox):
    def touch(count):
        if count == 4:
            inbox.put(None)
        return count < 4

    requests = Idle(touch)
    engine_thread._serve(requests, inbox)
    assert requests.log == ["touched"] * 4


@pytest.fixture
def rests(monkeypatch):
    """Is set when an engine has nothing left to touch."""
    event, real = threading.Event(), Pool.touch_ahead

    def touch_ahead(pool, *given):
        more = real(pool, *given)
        if not more:
            event.set()
        return more

    monkeypatch.setattr(engine_thread, "IDLE_SECONDS", 0)
    monkeypatch.setattr(Pool, "touch_ahead", touch_ahead)
    return event


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_each_new_prompt_finds_its_memory(fake_artifact, touched, rests, prefix_cache):
    """A model that is open and idle has the pages of a step. Those of a prompt whose pages are
    kept are replaced; pages that are not kept are used again."""
    config = EngineConfig(prefix_cache=prefix_cache)
    with LLM(fake_artifact, num_threads=1, config=config) as llm:
        assert rests.wait(60)
        assert sum(nbytes for _, nbytes in touched) == STEP_PAGES * PAGE_BYTES
        for number in range(1, 4):
            rests.clear()
            prompt = [number, *range(19)]  # five pages, and a part of one
            output = llm.generate([{"prompt_token_ids": prompt}], PARAMS)[0].outputs[0]
            assert output.token_ids == greedy(prompt, 4)
            assert rests.wait(60)
            kept = 5 * number if prefix_cache else 0
            assert len(touched) == len(set(touched)) == 2 * (STEP_PAGES + kept)


def test_a_system_that_gives_nothing_ahead_runs_all_the_same(fake_artifact, monkeypatch, rests):
    monkeypatch.setattr(memory, "_POPULATE_WRITE", 9999)
    with LLM(fake_artifact, num_threads=1) as llm:
        assert rests.wait(60)
        output = llm.generate([{"prompt_token_ids": [3]}], PARAMS)[0].outputs[0]
        assert output.token_ids == greedy([3], 4)
