"""Plans in groups, which mean what they meant."""

from __future__ import annotations

import torch

from ingot.artifact.manifest import GroupEntry
from ingot.artifact.plan import Plan
from ingot.artifact.target import Target
from ingot.compiler.interpret import States, Value, interpret, new_states
from ingot.ops.steps import paged_step
from ingot.targets.cpu.generate import generate
from ingot.targets.cpu.kind import KIND
from tests.targets.cpu.units import apart, given_rows, parts_of
from tests.targets.sketch import Sketch

TARGET = Target("cpu", "portable")


def grouped(s: Sketch) -> tuple[Plan, dict[str, GroupEntry]]:
    """The plan in groups, which can be generated and means what it meant."""
    plan, ledger = KIND.group(s.plan())
    generate(apart(plan), TARGET)
    assert_same_meaning(s, plan)
    return plan, {entry.name: entry for entry in ledger}


def assert_same_meaning(s: Sketch, plan: Plan) -> None:
    before, states = meaning(s, s.plan())
    after, states_after = meaning(s, plan)
    assert before.keys() == after.keys()
    for name, value in (before | states).items():
        for one, other in zip(parts_of(value), parts_of((after | states_after)[name]), strict=True):
            assert torch.equal(one.nan_to_num(7), other.nan_to_num(7)), name


def meaning(s: Sketch, plan: Plan) -> tuple[dict[str, Value], States]:
    """All results by name, and what the states hold after a step."""
    rng = torch.Generator().manual_seed(0)
    inputs, pages = paged_step(rng, [(3, 20), (1, 17)], 16)
    rows = {b.name: torch.randn((4, *b.shape[1:]), generator=rng) for b in given_rows(s.plan())}
    states = new_states(plan, pages)
    made = interpret(plan, lambda b: s.weights[b.name], {**inputs, **rows}, states)
    return {name: value for each in made for name, value in each.items()}, states


def kernels(plan: Plan) -> list[tuple[str, ...]]:
    """The kernels in order, each with the ops of its members if they are several."""
    return [
        (group.kernel, *(i.op for i in plan.members(group) if group.count > 1))
        for group in plan.kernels
    ]


def inner(plan: Plan) -> set[str]:
    return {b.name for b in plan.of_kind("inner")}


def refused(s: Sketch, rule: str) -> str:
    """Why the rule has formed no group, for this one reason."""
    _, ledger = grouped(s)
    ((reason, count),) = ledger[rule].reasons
    assert (ledger[rule].formed, count) == (0, 1)
    return reason


def untouched(s: Sketch, rule: str) -> bool:
    """Whether the rule finds nothing to say."""
    entry = grouped(s)[1][rule]
    return (entry.allowed, entry.formed, entry.reasons) == (0, 0, ())


def read(s: Sketch, name: str, out: str = "elsewhere") -> None:
    """Lets something else read a buffer."""
    s.call("activation", name, out=out, kind="relu")
