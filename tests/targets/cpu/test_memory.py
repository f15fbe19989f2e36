"""The arena planner, against the definition of a valid plan."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingot.artifact.plan import Buffer, Instruction, Limits, Plan
from ingot.errors import InternalError
from ingot.targets.cpu.memory import ALIGNMENT, Lifetime, lifetimes, plan_memory
from ingot.targets.cpu.memory_check import check_memory

LIMITS = Limits(
    max_model_len=64, max_num_seqs=4, max_num_batched_tokens=8, max_logit_rows=4, page_size=16
)

random_lifetimes = st.lists(
    st.tuples(st.integers(0, 500), st.integers(0, 30), st.integers(0, 10)), max_size=40
).map(lambda rows: [Lifetime(f"t{i}", n, a, a + d) for i, (n, a, d) in enumerate(rows)])


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


@given(random_lifetimes)
def test_the_arena_is_no_larger_than_keeping_everything(items: list[Lifetime]) -> None:
    padded = sum(-(-item.nbytes // ALIGNMENT) * ALIGNMENT for item in items)
    assert plan_memory(items).arena_bytes <= padded


def test_a_chain_needs_room_for_two() -> None:
    chain = [Lifetime(f"t{i}", 64, i, i + 1) for i in range(10)]
    assert plan_memory(chain).arena_bytes == 128


def test_lifetimes_run_from_the_first_touch_to_the_last() -> None:
    uses = [((), ("a",)), (("a",), ("b",)), (("weight",), ("c",)), (("a", "c"), ())]
    assert lifetimes(uses, {"a": 4, "b": 8, "c": 12}) == (
        Lifetime("a", 4, 0, 3),
        Lifetime("b", 8, 1, 1),
        Lifetime("c", 12, 2, 3),
    )


def chain_plan() -> Plan:
    """tokens -> a -> b -> c, where c also reads a through a view."""
    buffers = (
        Buffer(name="tokens", dtype="int32", shape=("N",), kind="input"),
        *(
            Buffer(name=name, dtype="float32", shape=("N", 16), kind="arena", offset=512 * i)
            for i, name in enumerate("abc")
        ),
        Buffer(
            name="view", dtype="float32", shape=("N", 8), kind="view",
            offset=8, base="a", row_stride=16,
        ),
    )  # fmt: skip

    def step(inputs: dict[str, str], out: str) -> Instruction:
        return Instruction(op="op", inputs=inputs, outputs={"out": out}, attrs={}, origin="")

    instructions = (
        step({"x": "tokens"}, "a"),
        step({"x": "a"}, "b"),
        step({"x": "b", "y": "view"}, "c"),
    )
    return Plan(
        limits=LIMITS, buffers=buffers, instructions=instructions,
        memory=replace(plan_memory(()), arena_bytes=1536),
    )  # fmt: skip


def moved(plan: Plan, name: str, offset: int) -> Plan:
    buffers = tuple(replace(b, offset=offset) if b.name == name else b for b in plan.buffers)
    return replace(plan, buffers=buffers)


def test_the_checker_accepts_a_valid_plan() -> None:
    check_memory(chain_plan())


@pytest.mark.parametrize(
    ("name", "offset", "complaint"),
    [
        ("b", 0, "overlap"),  # while a lives
        ("c", 0, "overlap"),  # a is still read, through its view
        ("c", 448, "overlap"),  # in part
        ("c", 1088, "outside"),
        ("b", 520, "outside"),  # not aligned
    ],
)
def test_the_checker_refuses_a_broken_plan(name: str, offset: int, complaint: str) -> None:
    with pytest.raises(InternalError, match=complaint):
        check_memory(moved(chain_plan(), name, offset))
