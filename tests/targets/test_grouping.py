"""Grouping as such: order, what loses its memory, what is refused, and the ledger."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ingot.artifact.formats import Format
from ingot.artifact.manifest import GroupEntry
from ingot.artifact.plan import Group, Plan
from ingot.errors import InternalError
from ingot.targets.grouping import Flow, Found, group
from tests.targets.sketch import STEP, Sketch


def chain() -> Sketch:
    """a = silu(x), b = relu(y), c = a + y, d = silu(c)"""
    s = Sketch()
    x, y = s.rows("x", 64), s.rows("y", 64)
    s.call("activation", x, out="a", kind="silu")
    s.call("activation", y, out="b", kind="relu")
    s.call("add", "a", y, out="c")
    s.call("activation", "c", out="d", kind="silu")
    return s


def formed(plan: Plan, *found: Found) -> Plan:
    flow = Flow(plan)
    for each in found:
        flow.form(each)
    return flow.grouped()


def results(plan: Plan) -> list[str]:
    return [name for i in plan.instructions for name in i.outputs.values()]


def kinds(plan: Plan) -> str:
    """Of a, b, c and d."""
    return " ".join(plan.buffer(name).kind for name in "abcd")


def test_a_group_stands_where_its_last_member_stood() -> None:
    plan = formed(chain().plan(), Found("add_silu", (0, 2)))
    assert results(plan) == ["b", "a", "c", "d"]
    assert plan.groups == (Group(kernel="add_silu", first=1, count=2),)
    assert [kernel.kernel for kernel in plan.kernels] == ["activation", "add_silu", "activation"]


def test_what_only_its_kernel_sees_loses_its_memory() -> None:
    assert kinds(formed(chain().plan(), Found("k", (0, 2)))) == "inner arena arena arena"
    assert kinds(formed(chain().plan(), Found("k", (2, 3)))) == "arena arena inner inner"
    assert kinds(formed(chain().plan(), Found("k", (0, 2), stores=("a",)))) == " ".join(
        ["arena"] * 4
    )


def test_what_others_read_keeps_its_memory() -> None:
    s = chain()
    s.call("activation", "a", out="e", kind="relu")
    assert kinds(formed(s.plan(), Found("k", (0, 2)))) == "arena arena arena arena"
    s = chain()
    s.call("activation", s.view("half", "a", 32, 32), out="e", kind="relu")
    assert kinds(formed(s.plan(), Found("k", (0, 2)))) == "arena arena arena arena"


def test_what_a_program_gives_is_no_groups_own() -> None:
    s = chain()
    s.call("select_rows", "d", "logit_rows", out="e")
    s.call("cast", "e", into=s.logits(64))
    plan = formed(s.plan(), Found("k", (4, 5)))
    assert plan.buffer("e").kind == "inner"
    assert plan.buffer("logits").kind == "output"


def test_groups_grow_together_and_keep_what_they_store() -> None:
    plan = formed(chain().plan(), Found("first", (0, 2), stores=("a",)), Found("second", (0, 3)))
    assert plan.groups == (Group(kernel="second", first=1, count=3),)
    assert kinds(plan) == "arena arena inner inner"


def reads_the_result(s: Sketch) -> None:
    s.call("activation", "a", out="between", kind="relu")


def reads_a_view_of_it(s: Sketch) -> None:
    s.call("activation", s.view("half", "a", 32, 32), out="between", kind="relu")


@pytest.mark.parametrize("between", [reads_the_result, reads_a_view_of_it])
def test_a_group_that_would_overtake_what_it_feeds_is_refused(
    between: Callable[[Sketch], None],
) -> None:
    s = Sketch()
    s.call("activation", s.rows("x", 64), out="a", kind="silu")
    between(s)
    s.call("activation", "a", out="c", kind="silu")
    with pytest.raises(InternalError, match="kernel k would overtake what it feeds: cases"):
        formed(s.plan(), Found("k", (0, 2)))


def write(s: Sketch) -> None:
    s.call("kv_write", "k", "v", "slots", "k_cache", "v_cache")


def attend(s: Sketch, out: str = "attended") -> None:
    s.call("paged_attention", "q", "k_cache", "v_cache", *STEP, out=out, scale=1.0)


@pytest.mark.parametrize(
    "first, between", [(write, attend), (attend, write), (write, write)],
    ids=["read after write", "write after read", "two writes"],
)  # fmt: skip
def test_states_are_not_overtaken_either(
    first: Callable[[Sketch], None], between: Callable[[Sketch], None]
) -> None:
    s = Sketch()
    for name in "qkv":
        s.rows(name, 2, 64)
    s.caches(2, 64)
    first(s)
    between(s)
    s.call("activation", "q", out="last", kind="silu")
    with pytest.raises(InternalError, match="would overtake"):
        formed(s.plan(), Found("k", (0, 2)))


def test_two_that_read_a_state_may_change_places() -> None:
    s = Sketch()
    s.rows("q", 2, 64)
    s.caches(2, 64)
    attend(s, "first")
    attend(s, "second")
    s.call("activation", "first", out="last", kind="silu")
    assert results(formed(s.plan(), Found("k", (0, 2)))) == ["second", "first", "last"]


def pairs_of_silu(flow: Flow, index: int) -> Found | str | None:
    instruction = flow.instructions[index]
    if instruction.op != "activation":
        return None
    if instruction.attrs["kind"] != "silu":
        return f"{instruction.attrs['kind']} is no silu"
    readers = flow.readers(index)
    return Found("pair", (index, readers[0])) if readers else "nobody reads it"


def nothing(flow: Flow, index: int) -> Found | str | None:
    return None


def test_the_ledger_counts_groups_and_reasons() -> None:
    s = chain()
    s.call("activation", "b", out="e", kind="relu")
    plan, ledger = group(s.plan(), (pairs_of_silu, nothing))
    assert ledger == (
        GroupEntry(
            name="pairs_of_silu", allowed=4, formed=1,
            reasons=(("nobody reads it", 1), ("relu is no silu", 2)),
        ),
        GroupEntry(name="nothing", allowed=0, formed=0),
    )  # fmt: skip
    assert [kernel.kernel for kernel in plan.kernels].count("pair") == 1


def test_later_rules_see_the_groups_of_earlier_ones() -> None:
    def longer(flow: Flow, index: int) -> Found | None:
        whole = flow.instructions[index].outputs.get("out") == "d" and flow.kernel(0) == "pair"
        return Found("chain", (0, index)) if whole else None

    plan, _ = group(chain().plan(), (pairs_of_silu, longer))
    assert plan.groups == (Group(kernel="chain", first=1, count=3),)


def test_who_makes_and_who_reads() -> None:
    s = chain()
    view = s.view("half", "a", 32, 32)
    flow = Flow(s.plan())
    assert flow.below(view) == 0
    assert flow.maker(view, flow.instructions[0].op) is None
    assert flow.below("x") is None
    assert (flow.maker("a", "activation"), flow.maker("c", "add")) == (0, 2)
    assert flow.maker("a", "add") is flow.maker("x", "activation") is None
    assert flow.readers(0) == [2]
    assert flow.is_read_only_by(0, (2,))
    assert not flow.is_read_only_by(0, (1,))


@pytest.mark.parametrize(
    ("names", "whole"),
    [
        (("x",), True), (("left", "right"), True), (("right", "left"), False), (("left",), False),
        (("right",), False), (("left", "left"), False), (("quarter", "right"), False),
    ],
)  # fmt: skip
def test_views_cover_a_buffer_in_order_or_do_not(names: tuple[str, ...], whole: bool) -> None:
    s = Sketch()
    x = s.rows("x", 64)
    for name, first, size in (("left", 0, 32), ("right", 32, 32), ("quarter", 0, 16)):
        s.view(name, x, first, size)
    assert Flow(s.plan()).covers(names) is whole


def test_a_rounding_inside_a_group_keeps_its_instructions_apart() -> None:
    def sums(flow: Flow, index: int) -> Found | None:
        return Found("k", (0, 1)) if index == 1 else None

    s = Sketch()
    s.call("activation", s.rows("x", 64), out="a", kind="silu", form=Format("bfloat16"))
    s.call("add", "a", s.rows("y", 64), out="c")
    plan, (entry,) = group(s.plan(), [sums])
    assert plan.groups == ()
    assert (entry.allowed, entry.formed) == (1, 0)
    assert entry.reasons == (("a result inside it is rounded to bfloat16", 1),)
