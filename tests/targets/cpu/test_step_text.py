"""The text of a step around its calls: waits, parts of the work, loops, and its table."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from ingot.artifact.plan import Plan
from ingot.targets.cpu.barriers import Barrier
from ingot.targets.cpu.generate import _part, _wait, generate
from ingot.targets.cpu.kind import KIND
from ingot.targets.grouping import Found
from ingot.targets.target import target_named
from tests.targets.sketch import STEP, Sketch, normal
from tests.targets.test_grouping import formed


def sizes(text: str) -> frozenset[str]:
    return frozenset(text.split())


@pytest.mark.parametrize(
    ("even", "uneven", "condition"),
    [
        ("few some many", "few some many", ""),
        ("many", "many", "if (many) "),
        ("many some", "some many", "if (some || many) "),
        ("", "some", "if (even ? false : some) "),
        ("few many", "", "if (even ? few || many : false) "),
        ("few some many", "few", "if (even ? true : few) "),
    ],
)
def test_a_wait_has_the_sizes_of_its_steps(even: str, uneven: str, condition: str) -> None:
    assert _wait(Barrier(sizes(even), sizes(uneven))) == [f"  {condition}barrier.wait();"]


def test_without_sizes_there_is_no_wait() -> None:
    assert _wait(Barrier()) == []


@pytest.mark.parametrize(
    ("even", "uneven", "part"),
    [
        ("", "", "all_rows(R, team)"),
        ("many", "many", "own_if_many"),
        ("many", "some many", "own_if_uneven"),
        ("some many", "some many", "own_unless_few"),
    ],
)
def test_a_part_of_rows_depends_on_the_sizes(even: str, uneven: str, part: str) -> None:
    kernel = SimpleNamespace(is_row_wise=False, attends=False, rows="R")
    assert _part(kernel, sizes(even), sizes(uneven)) == part
    row_wise = SimpleNamespace(is_row_wise=True, attends=False)
    attends = SimpleNamespace(is_row_wise=False, attends=True)
    assert [_part(k, sizes(even), sizes(uneven)) for k in (row_wise, attends)] == ["block", "team"]


def layer() -> Plan:
    """A sum and its norm in one kernel, two more row by row, attention, and a head."""
    s = Sketch()
    s.rows("x", 2, 16)
    x = s.view("row", "x", 0, 32)
    s.call("add", x, x, out="sum")
    s.call("rms_norm", "sum", s.vector("norm", 32), out="normed", eps=1e-5, offset=0.0)
    s.call("activation", "normed", out="a", kind="silu")
    s.call("add", "a", "sum", out="b")
    s.call("paged_attention", "x", *s.caches(2, 16), *STEP, out="attended", scale=1.0)
    s.call("select_rows", "b", "logit_rows", out="chosen")
    s.call("linear", "chosen", s.weight("head", normal(80, 32)), into=s.logits(80))
    return KIND.place(formed(s.plan(), Found("add_rms_norm", (0, 1), stores=("sum",))))


def step(plan: Plan) -> str:
    return generate(plan, target_named("cpu:x86-64-v3"))["step.cpp"]


def test_the_table_tells_what_the_plan_has() -> None:
    plan = layer()
    text = step(plan)
    table = dict(re.findall(r"/\* ([a-z ]+) \*/ (\w+)", text))
    assert plan.memory.arena_bytes > 0
    assert {name: table[name] for name in ("kernels", "weights", "caches", "vocabulary")} == {
        "kernels": "6", "weights": "2", "caches": "2", "vocabulary": "80",
    }  # fmt: skip
    assert table["bytes of an arena"] == str(plan.memory.arena_bytes)
    marks = [int(number) for number in re.findall(r"clock\.mark\((\d+)\)", text)]
    assert marks == [0, 1, 2, 3, 4, 5]
    assert "One step of a model for cpu:x86-64-v3," in text
    assert "bool even = even_heads(2, team);" in text


def test_a_thread_is_told_of_each_attention_behind_the_one_before() -> None:
    s = Sketch()
    x = s.view("row", s.rows("x", 2, 16), 0, 32)
    for layer, window in enumerate((0, 40)):
        s.call("add", x, x, out=f"sum{layer}")
        caches = s.caches(2, 16)
        s.call("paged_attention", "x", *caches, *STEP, out=f"a{layer}", scale=1.0, window=window)
    text = step(KIND.place(s.plan()))
    told = re.findall(r" ((?:look_ahead|look_away|paged_attention|add)_\d)\(frame", text)
    assert told == [
        "look_ahead_0", "add_0", "paged_attention_0", "look_ahead_1", "add_0", "paged_attention_1",
        "look_away_0",
    ]  # fmt: skip


def test_neighbours_row_by_row_share_a_loop() -> None:
    text = step(layer())
    loops = re.findall(r"for \(const Slice block : (.*)\) \{", text)
    assert loops == ["row_blocks(N, alone)", "row_blocks(R, alone)"]
    assert text.count("{") == text.count("}")
    first, second = (text.index(f"clock.mark({n})") for n in (0, 2))
    assert "}" not in text[text.index(loops[0]) : first]
    assert "for (" not in text[first:second]


def test_maxima_follow_a_head_alone() -> None:
    assert "head_maxima" in step(layer())
    s = Sketch()
    s.call("linear", s.rows("x", 32), s.weight("w", normal(80, 32)), out="y")
    text = step(KIND.place(s.plan()))
    assert "head_maxima" not in text and "/* vocabulary */ 0," in text
    assert "bool even = true;" in text
