"""Computes what a kernel should have made of its inputs: its instructions, by the references."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from ingot.artifact.plan import MemoryPlan, Plan
from ingot.compare.differences import Difference, differences
from ingot.compare.seen import Seen, copied, left
from ingot.compiler.interpret import Step, Value
from ingot.targets.target import Weights


def expected(seen: Seen, inputs: Mapping[str, Tensor], weights: Weights) -> dict[str, Value]:
    """The results of a kernel, and the states that it wrote into, given what it was given."""
    work = seen.work
    plan = unplaced(work.plan)
    states = {state.name for state in plan.spec.states}
    given = {name: copied(value) for name, value in seen.before.items()}
    step = Step(plan, weights, inputs, {n: v for n, v in given.items() if n in states})
    step.values |= given
    made: dict[str, Value] = {}
    with torch.inference_mode():
        for instruction in work.members:
            made |= step.run(instruction)
    return {name: step.values[name] if name in states else made[name] for name in left(work)}


def errors_of(seen: Seen, inputs: Mapping[str, Tensor], weights: Weights) -> list[Difference]:
    """Compares what a kernel left with what it should have left."""
    return errors_against(seen, expected(seen, inputs, weights))


def errors_against(seen: Seen, wanted: Mapping[str, Value]) -> list[Difference]:
    """As `errors_of`, given what should have been left."""
    work, found = seen.work, list[Difference]()
    for name, value in wanted.items():
        found += differences(work.plan, name, work.members, shaped(seen.after[name], value), value)
    return found


def shaped(got: Value, like: Value) -> Value:
    """Reshapes a value like another: references add a batch and leave out dimensions of 1."""
    if isinstance(got, Tensor) and isinstance(like, Tensor):
        return got.reshape(like.shape)
    return got


def unplaced(plan: Plan) -> Plan:
    """The plan with memory of its own for every temporary."""
    buffers = (replace(b, offset=0) if b.kind == "arena" else b for b in plan.buffers)
    return replace(plan, buffers=tuple(buffers), memory=MemoryPlan())
