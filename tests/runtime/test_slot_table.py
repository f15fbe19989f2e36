"""Slots are handed out once, and snapshots are copied, found and given up as they should be."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest

from ingot.artifact.formats import Format
from ingot.artifact.plan import StateArray
from ingot.artifact.spec import State
from ingot.errors import InternalError, ResourceError
from ingot.runtime.devices.pool import Pool
from ingot.runtime.page_table import PageTable
from ingot.runtime.pool_size import SLOTS_PER_SEQ, PoolSize, pool_size
from ingot.runtime.residence import Residence
from ingot.runtime.slot_table import SlotTable
from tests.runtime.fake_model import LIMITS, PAGE_BYTES, make_plan

SIZE = 4
TOKENS = [*range(3 * SIZE)]
RECORD = State(name="tail", kind="slotted", format=Format("float32"), record=(2, 8))
RECORD_BYTES = 64


def begun(residence: Residence, sequence_id: int, num_tokens: int = 2 * SIZE) -> None:
    prefix = residence.match(TOKENS, num_tokens - 1, b"")
    assert residence.admit(sequence_id, num_tokens, prefix)


def kept(residence: Residence, sequence_id: int) -> None:
    """Has a sequence compute its first page, whose end is a border."""
    residence.snapshot(sequence_id, SIZE)
    residence.publish(sequence_id, TOKENS, SIZE, b"")


def test_a_sequence_goes_on_from_a_copy_of_what_another_left():
    residence = Residence(PageTable(20, SIZE), num_slots=4)
    begun(residence, 0)
    kept(residence, 0)
    begun(residence, 1)
    own, other = residence.slots.slot(0), residence.slots.slot(1)
    (source, snapshot), *more = residence.take_copies()
    assert source == own and more == [(snapshot, other)] and len({own, snapshot, other}) == 3
    assert residence.take_copies() == [], "each is made once"
    assert residence.pages.page_ids(1)[0] == residence.pages.page_ids(0)[0]
    residence.check()


def test_pages_without_a_snapshot_are_no_prefix():
    residence = Residence(PageTable(20, SIZE), num_slots=4)
    begun(residence, 0, 3 * SIZE)
    residence.publish(0, TOKENS, 2 * SIZE, b"")
    assert residence.match(TOKENS, 3 * SIZE, b"") == []
    residence.release(0)
    begun(residence, 1, 3 * SIZE)
    kept(residence, 1)
    residence.publish(1, TOKENS, 3 * SIZE, b"")
    assert len(residence.match(TOKENS, 3 * SIZE, b"")) == 1, "the longest that has one"


def test_the_last_slot_is_moved_and_not_copied():
    residence = Residence(PageTable(20, SIZE), num_slots=2)
    begun(residence, 0)
    kept(residence, 0)
    ((_, snapshot),) = residence.take_copies()
    begun(residence, 1)
    assert residence.slots.slot(1) == snapshot and residence.take_copies() == []
    assert residence.match(TOKENS, SIZE, b"") == [], "it is nobody else's any more"
    assert not residence.admit(2, SIZE), "there is no third"
    residence.check()


def test_snapshots_of_pages_that_are_lost_go_first_and_then_the_oldest():
    residence = Residence(PageTable(3, SIZE), num_slots=4)
    for number, first in enumerate((100, 200)):
        tokens = [first, *TOKENS]
        assert residence.admit(number, SIZE)
        residence.snapshot(number, SIZE)
        residence.publish(number, tokens, SIZE, b"")
        residence.release(number)
    assert residence.slots.num_free == 4
    old, new = (residence.match([first, *TOKENS], SIZE, b"")[0] for first in (100, 200))
    new.known = False
    for number in (5, 6, 7):
        residence.slots.take(number)
    assert residence.slots.has(old) and not residence.slots.has(new)
    residence.slots.take(8)
    assert not residence.slots.has(old) and residence.slots.num_free == 0
    residence.check()


def test_what_nobody_can_find_is_given_back():
    slots = SlotTable(3)
    slots.take(0)
    slots.snapshot(0, 2 * SIZE)
    slots.publish(0, SIZE, None)
    assert slots.num_free == 1, "it is kept for the page that it belongs to"
    slots.publish(0, 2 * SIZE, None)
    assert slots.num_free == 2
    slots.snapshot(0, SIZE)
    slots.release(0)
    slots.release(0)
    assert slots.num_free == 3
    slots.check()
    slots._blank.append(0)
    with pytest.raises(InternalError, match="used twice"):
        slots.check()


def test_forgetting_prefixes_frees_all_snapshots():
    residence = Residence(PageTable(20, SIZE), num_slots=3)
    begun(residence, 0)
    kept(residence, 0)
    residence.snapshot(0, 2 * SIZE)
    residence.forget_prefixes()
    assert residence.slots.num_free == 2 and residence.match(TOKENS, SIZE, b"") == []
    residence.check()


def with_record():
    plan = make_plan()
    states = (*plan.spec.states, RECORD)
    return replace(plan, spec=replace(plan.spec, states=states))


def test_slots_count_apart_from_pages():
    plan, without = with_record(), make_plan()
    assert plan.slot_bytes == RECORD_BYTES and without.slot_bytes == 0
    assert plan.page_sizes() == without.page_sizes()
    assert plan.kv_bytes_per_token == without.kv_bytes_per_token
    assert (plan.rewinds, without.rewinds) == (False, True)


def test_pages_and_slots_shrink_alike_with_the_budget():
    plan, seqs = with_record(), LIMITS.max_num_seqs
    full = PoolSize(24 * seqs, SLOTS_PER_SEQ * seqs)
    assert pool_size(plan, 96, None) == pool_size(plan, 96, full.nbytes(plan)) == full
    half = pool_size(plan, 96, full.nbytes(plan) // 2)
    assert half.num_slots == full.num_slots // 2
    assert half.num_pages in (full.num_pages // 2, full.num_pages // 2 - 1)
    assert half.nbytes(plan) <= full.nbytes(plan) // 2
    least = 24 * PAGE_BYTES + RECORD_BYTES
    assert pool_size(plan, 96, least) == PoolSize(24, 1)
    with pytest.raises(ResourceError, match="max_model_len is 96") as raised:
        pool_size(plan, 96, least - 1)
    assert f"kv_cache_bytes >= {least}" in raised.value.hint


def test_a_model_without_pages_is_limited_by_its_slots():
    plan = make_plan()
    alone = replace(plan, spec=replace(plan.spec, states=(RECORD,)))
    size = pool_size(alone, 96, 5 * RECORD_BYTES)
    assert size == PoolSize(24 * SLOTS_PER_SEQ * LIMITS.max_num_seqs, 5)
    longest = pool_size(alone, 2**30, RECORD_BYTES)
    assert longest.num_slots == 1 and longest.num_pages >= 2**30 // SIZE, "no length is refused"
    with pytest.raises(ResourceError, match=f"whose record takes {RECORD_BYTES}") as raised:
        pool_size(alone, 96, RECORD_BYTES - 1)
    assert f"kv_cache_bytes >= {RECORD_BYTES}" in raised.value.hint


def test_records_are_copied_in_order():
    arrays = [StateArray("slotted", 8), StateArray("paged", 64), StateArray("slotted", 8)]
    pool = Pool(arrays, PoolSize(2, 4), step_pages=1)
    records, tails = (
        np.ctypeslib.as_array(ctypes.cast(pool.addresses[i], ctypes.POINTER(ctypes.c_int64)), (4,))
        for i in (0, 2)
    )
    records[:] = 10, 11, 12, 13
    tails[:] = 20, 21, 22, 23
    pool.copy([(0, 2), (2, 3), (1, 0)])
    assert records.tolist() == [11, 11, 10, 10] and tails.tolist() == [21, 21, 20, 20]
    pool.region.close()
