"""Records that sequences begin with: how they are stored, and when they are copied to a slot."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ingot.artifact.formats import Format
from ingot.artifact.spec import State
from ingot.errors import UsageError
from ingot.runtime.initial_record import InitialRecord
from ingot.runtime.slot_table import SlotTable

FIRST = InitialRecord(b"first")


def plan_of(*dtypes: str) -> SimpleNamespace:
    states = [
        State(name=f"tail_{dtype}", kind="slotted", format=Format(dtype), record=(3, 5))
        for dtype in dtypes
    ]
    return SimpleNamespace(spec=SimpleNamespace(states=states))


def test_numbers_are_stored_as_their_state_stores_them():
    numbers = np.random.default_rng(0).normal(size=(3, 5)) * 1e3
    given = torch.from_numpy(numbers).float()
    for dtype in ("float32", "bfloat16", "float16"):
        record = InitialRecord.of({f"tail_{dtype}": numbers}, plan_of("float32", dtype))
        expected = given.to(getattr(torch, dtype)).view(torch.uint8).numpy().tobytes()
        zeros = b"" if dtype == "float32" else bytes(60)
        assert record.data.removeprefix(zeros)[: len(expected)] == expected
    with pytest.raises(UsageError, match="stored in int8"):
        InitialRecord.of({}, plan_of("int8"))


def test_pieces_are_filled_in_order():
    fill = InitialRecord(b"abcde").filler()
    pieces = [bytearray(2), bytearray(3)]
    for piece in pieces:
        fill(memoryview(piece))
    assert pieces == [b"ab", b"cde"]


def test_salts_differ_by_record_and_by_salt():
    other = InitialRecord(b"other")
    salts = [b"", b"a", *(r.salted(s) for r in (FIRST, other) for s in (b"", b"a"))]
    assert len({*salts}) == 6
    assert InitialRecord(b"first").salted(b"a") == FIRST.salted(b"a")


def test_a_sequence_gets_its_record_with_its_slot_and_not_again():
    slots = SlotTable(2)
    slots.take(7, FIRST)
    slots.take(7, FIRST)
    assert slots.copies == [(FIRST, slots.slot(7))]
    # Whoever has a snapshot of later tokens to go on from needs none.
    slots.set_aside(7, 4, None)
    slots.take(7, 7)
    assert slots.copies == [(FIRST, slots.slot(7))]
    slots.release(7)
    slots.take(7, FIRST)
    assert len(slots.copies) == 2
    slots.check()
