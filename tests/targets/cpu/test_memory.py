"""The arena planner, against the definition of a valid plan."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingot.artifact.formats import rounded_rows
from ingot.artifact.plan import ALIGNMENT, Plan
from ingot.errors import InternalError
from ingot.targets.cpu.kind import KIND
from ingot.targets.cpu.work import lasting_reads, work_of
from ingot.targets.grouping import Found
from ingot.targets.memory import Lifetime, lifetimes, plan_memory
from ingot.targets.memory_check import check_memory
from tests.targets.cpu.units import apart
from tests.targets.sketch import LIMITS, STEP, Sketch, normal
from tests.targets.test_grouping import formed

random_lifetimes = st.lists(
    st.tuples(st.integers(0, 500), st.integers(0, 30), st.integers(0, 10)), max_size=40
).map(lambda rows: [Lifetime(f"t{i}", n, a, a + d) for i, (n, a, d) in enumerate(rows)])


@settings(deadline=None, derandomize=True, database=None)
@given(random_lifetimes)
def test_temporaries_alive_together_never_share_a_byte(items: list[Lifetime]) -> None:
    plan = plan_memory(items)
    by_name = {slot.name: slot for slot in plan.slots}
    assert set(by_name) == {item.name for item in items}
    for slot in plan.slots:
        assert slot.offset % ALIGNMENT == 0
        assert 0 <= slot.offset <= slot.offset + slot.nbytes <= plan.arena_bytes
    for a, b in combinations(items, 2):
        shared_times = set(range(a.first_use, a.last_use + 1)) & set(
            range(b.first_use, b.last_use + 1)
        )
        slots = by_name[a.name], by_name[b.name]
        bytes_a, bytes_b = (set(range(s.offset, s.offset + s.nbytes)) for s in slots)
        assert not shared_times or not bytes_a & bytes_b


@settings(deadline=None, derandomize=True, database=None)
@given(random_lifetimes)
def test_the_arena_is_no_larger_than_keeping_everything(items: list[Lifetime]) -> None:
    padded = sum(-(-item.nbytes // ALIGNMENT) * ALIGNMENT for item in items)
    assert plan_memory(items).arena_bytes <= padded


@settings(deadline=None, derandomize=True, database=None)
@given(random_lifetimes)
def test_the_largest_take_the_lowest_place_that_is_free(items: list[Lifetime]) -> None:
    """Places are tried one by one here; of those as large, the first used goes first."""
    placed: list[tuple[Lifetime, int]] = []
    for item in sorted(items, key=lambda i: (-i.nbytes, i.first_use, i.name)):
        others = [(o, at) for o, at in placed if item.overlaps(o)]
        ends = [at + -(-o.nbytes // ALIGNMENT) * ALIGNMENT for o, at in others]
        free = (
            at
            for at in sorted({0, *ends})
            if all(at + item.nbytes <= b or b + o.nbytes <= at for o, b in others)
        )
        placed.append((item, next(free)))
    offsets = {slot.name: slot.offset for slot in plan_memory(items).slots}
    assert offsets == {item.name: offset for item, offset in placed}


def test_a_chain_needs_room_for_two() -> None:
    chain = [Lifetime(f"t{i}", 64, i, i + 1) for i in range(10)]
    assert plan_memory(chain).arena_bytes == 128


def test_what_kernels_read_lasts_until_attention_is_done() -> None:
    """In a step of many rows a slow thread may be any number of kernels behind."""
    s = Sketch()
    s.rows("a", 4, 16)
    for x, out in ("ab", "bc", "cd"):
        s.call("activation", x, out=out, kind="relu")
    s.call("paged_attention", "d", *s.caches(2, 16), *STEP, out="e", scale=1.0)
    s.call("activation", "e", out="f", kind="relu")
    lasting = [set(names) & set("abcdef") for names in lasting_reads(work_of(s.plan()))]
    assert lasting == [set("a"), set("ab"), set("abc"), set("abcd"), set("e")]


def test_lifetimes_run_from_the_first_touch_to_the_last() -> None:
    uses = [((), ("a",)), (("a",), ("b",)), (("weight",), ("c",)), (("a", "c"), ())]
    assert lifetimes(uses, {"a": 4, "b": 8, "c": 12}) == (
        Lifetime("a", 4, 0, 3),
        Lifetime("b", 8, 1, 1),
        Lifetime("c", 12, 2, 3),
    )


def chain() -> Sketch:
    """tokens -> a -> b -> c, where c also reads a through a view."""
    s = Sketch()
    s.call("embedding", "tokens", s.weight("w", normal(5, 16)), out="a")
    s.call("activation", "a", out="b", kind="silu")
    half = s.view("half", "b", 8, 8)
    s.call("add", half, s.view("view", "a", 8, 8), out="c")
    return s


def chain_plan() -> Plan:
    """Its temporaries one after the other."""
    return apart(chain().plan())


def moved(plan: Plan, name: str, offset: int) -> Plan:
    buffers = tuple(replace(b, offset=offset) if b.name == name else b for b in plan.buffers)
    return replace(plan, buffers=buffers)


def test_the_checker_accepts_a_valid_plan() -> None:
    check_memory(chain_plan())


ROWS = 64 * LIMITS.max_num_batched_tokens  # bytes of `a` and of `b`


@pytest.mark.parametrize(
    ("name", "offset", "complaint"),
    [
        ("b", 0, "overlap"),  # while a lives
        ("c", 0, "overlap"),  # a is still read, through its view
        ("c", ROWS - 64, "overlap"),  # in part
        ("c", 2 * ROWS + 64, "outside"),
        ("b", ROWS + 8, "outside"),  # not aligned
    ],
)
def test_the_checker_refuses_a_broken_plan(name: str, offset: int, complaint: str) -> None:
    with pytest.raises(InternalError, match=complaint):
        check_memory(moved(chain_plan(), name, offset))


def test_the_checker_sees_scales() -> None:
    """They are read as long as what they scale."""
    s = Sketch()
    s.call("cast", s.rows("x", 64), out="a", form=rounded_rows(32))
    s.call("activation", "x", out="b", kind="silu")
    plan = apart(s.plan())
    integers = 64 * LIMITS.max_num_batched_tokens
    check_memory(plan)
    s.call("linear", "a", s.weight("w", normal(64, 64)), out="c")
    plan = apart(s.plan())
    with pytest.raises(InternalError, match="temporaries a and b overlap"):
        check_memory(moved(plan, "b", plan.buffer("a").offset + integers))


def test_the_planner_places_what_kernels_read_and_write() -> None:
    """Nothing for what only a kernel sees; groups live as long as their kernel."""
    s = chain()
    s.call("activation", "c", out="d", kind="silu")
    plan = formed(s.plan(), Found("k", (2, 3)))
    placed = KIND.place(plan)
    check_memory(placed)
    assert [slot.name for slot in placed.memory.slots] == ["a", "b"]
    s.call("activation", "d", out="e", kind="relu")
    placed = KIND.place(formed(s.plan(), Found("k", (2, 3))))
    check_memory(placed)
    lives = {slot.name: (slot.first_use, slot.last_use) for slot in placed.memory.slots}
    assert lives == {"a": (0, 3), "b": (1, 3), "d": (2, 3), "e": (3, 3)}


def test_what_threads_may_still_read_keeps_its_place_until_they_meet() -> None:
    """In a step of many rows: at the next attention."""
    s = chain()
    q = s.rows("q", 2, 16)
    s.call("paged_attention", q, *s.caches(2, 16), *STEP, out="o", scale=1.0)
    s.call("activation", "o", out="p", kind="silu")
    s.call("activation", "p", out="r", kind="silu")
    slots = {slot.name: slot for slot in KIND.place(s.plan()).memory.slots}
    assert slots["a"].last_use == slots["b"].last_use == 3
    assert slots["p"].last_use == 5


def test_a_gap_that_just_fits_is_taken() -> None:
    """`y` lies behind `x`, whose place is free again when `g` and `h` live."""
    x, y = Lifetime("x", 256, 0, 1), Lifetime("y", 128, 1, 2)
    g, h = Lifetime("g", 128, 2, 2), Lifetime("h", 100, 2, 2)
    memory = plan_memory([h, g, y, x])
    assert [(slot.name, slot.offset) for slot in memory.slots] == [
        ("h", 128), ("g", 0), ("y", 256), ("x", 0),
    ]  # fmt: skip
    assert memory.arena_bytes == 384
    assert plan_memory([h]).arena_bytes == 128 and plan_memory([]).arena_bytes == 0


def test_lives_go_from_the_first_kernel_that_touches_it_to_the_last() -> None:
    uses = [(["w"], ["a"]), (["a", "w"], ["b"]), (["b"], []), ([], ["c"]), (["a"], ["a"])]
    assert lifetimes(uses, {"a": 1, "b": 2, "c": 3}) == (
        Lifetime("a", 1, 0, 4),
        Lifetime("b", 2, 1, 2),
        Lifetime("c", 3, 3, 3),
    )


def test_views_stay_where_they_are_in_their_base() -> None:
    s = Sketch()
    s.call("activation", s.rows("a", 64), out="b", kind="silu")
    s.call("activation", s.view("half", "b", 32, 32), out="c", kind="silu")
    placed = KIND.place(s.plan())
    assert placed.buffer("half").offset == 32 and placed.buffer("half").row_stride == 64
