"""Holds a plan against the model that it was made of, value by value.

The plan is widened: every number in float32, nothing rounded on the way. So what differs is what
the compiler did, and not what a number format explains. An instruction is confirmed where one of
the values of its module is its result. Passes may do what they like with the graph, as long as what
they compute is computed in the model, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ingot.artifact.formats import Format
from ingot.artifact.plan import Buffer, Plan
from ingot.compare.alone import unplaced
from ingot.compare.differences import Difference, difference
from ingot.compare.model_values import ModelValues
from ingot.compiler.interpret import Step, Value, new_states
from ingot.ops.registry import ROUNDS, KernelTolerance

WIDE = Format("float32")
# Sums in another order, over the depth of a model; the largest of a row counts, as terms cancel.
BOUNDS = KernelTolerance(1e-3, 1e-5)
RELATIVE = 2e-4  # |got - expected| / |expected| of all numbers


@dataclass(frozen=True, slots=True)
class Strayed:
    """An instruction whose result the model does not compute, beside the nearest value of it."""

    index: int
    nearest: str
    difference: Difference
    got: Tensor
    expected: Tensor


def widened(plan: Plan) -> Plan:
    """The plan with all numbers in float32 and memory of its own for every temporary."""
    spec = replace(
        plan.spec, states=tuple(replace(state, format=WIDE) for state in plan.spec.states)
    )
    buffers = tuple(replace(b, format=_wide(b.format)) for b in plan.buffers)
    instructions = tuple(
        replace(i, attrs={name: x for name, x in i.attrs.items() if name not in ROUNDS})
        for i in plan.instructions
    )
    return unplaced(replace(plan, spec=spec, buffers=buffers, instructions=instructions))


def _wide(form: Format) -> Format:
    return form if form.dtype == "int32" else WIDE


@dataclass(frozen=True, slots=True)
class PlanValues:
    """A widened plan that has run: what its buffers hold, rows by columns.

    `rows` are the tokens whose logits it gave, or those that texts are pooled to, by the symbol of
    the rows.
    """

    plan: Plan
    step: Step
    rows: Mapping[str, Tensor]

    @classmethod
    def of(
        cls,
        plan: Plan,
        weights: Callable[[Buffer], Value],
        inputs: Mapping[str, Tensor],
        num_pages: int,
    ) -> PlanValues:
        """Runs a plan in float32."""
        wide = widened(plan)
        with torch.inference_mode():
            step = Step(wide, weights, inputs, new_states(wide, num_pages))
            for instruction in wide.instructions:
                step.run(instruction)
        return cls(wide, step, rows_in(plan, inputs))

    def flat(self, buffer: Buffer) -> Tensor:
        value = self.step.memory(buffer)
        assert isinstance(value, Tensor), "a widened plan has no integers"
        return value.reshape(len(value), -1)

    def parts(self, name: str) -> list[Tensor]:
        """A result, or the views that others read of it."""
        whole = self.plan.buffer(name)
        views = [b for b in self.plan.buffers if b.kind == "view" and b.base == name]
        cut = [b for b in views if b.columns < whole.columns]
        return [self.flat(each) for each in cut or [whole]]

    def rows_of(self, name: str) -> Tensor | None:
        """The tokens whose rows a result has; None for all of them, or where it has none."""
        return self.rows.get(str(self.plan.buffer(name).shape[0]))

    def of_model(self) -> ModelValues:
        """Values of a plan, to compare another plan with."""
        found = ModelValues()
        for instruction in self.plan.instructions:
            for name in instruction.outputs.values():
                for part in (*self.parts(name), self.flat(self.plan.buffer(name))):
                    found.add(instruction.origin, name, part)
        return found


def rows_in(plan: Plan, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tokens of the rows that a step leaves, by the symbol that counts them."""
    spans = inputs["spans"].long()
    found = {"R": inputs["logit_rows"].long()}
    hows = {i.attrs["how"] for i in plan.instructions if "how" in i.attrs}  # texts are pooled
    if hows <= {"first", "last"} and hows:
        found["S"] = spans[:, 0] if hows == {"first"} else spans[:, 1] - 1
    return found


def strayed(values: PlanValues, model: ModelValues) -> Strayed | None:
    """The first instruction whose result is none of the model's; None if all are confirmed.

    Results that have no counterpart of their shape in the module are passed over, and so are those
    of which a confirmed result was made: they are spelled otherwise.
    """
    plan = values.plan
    judged = [_judge(values, n, model) for n in range(len(plan.instructions))]
    for index, found in enumerate(judged):
        if isinstance(found, Strayed) and not leads_to_confirmed(plan, judged, index):
            return found
    return None


def _judge(values: PlanValues, index: int, model: ModelValues) -> Strayed | bool | None:
    """True if confirmed, None if nothing can be said."""
    instruction = values.plan.instructions[index]
    for name in instruction.outputs.values():
        rows = values.rows_of(name)
        near = [
            _nearest(index, name, p, instruction.origin, rows, model) for p in values.parts(name)
        ]
        if None in near:
            return None
        strays = [each for each in near if each is not None and not _agrees(each.difference)]
        if strays and not _is_pair(values, name, instruction.origin, model):
            return strays[0]
    return True if instruction.outputs else None


def _nearest(
    index: int, output: str, part: Tensor, module: str, rows: Tensor | None, model: ModelValues
) -> Strayed | None:
    """A result beside the nearest value of its shape; None if there is none."""
    near = [
        (float((part - value).norm().nan_to_num(torch.inf)), name, value)
        for name, value in model.like(module, part, rows)
    ]
    if not near:
        return None
    _, name, value = min(near, key=lambda each: each[0])
    found = difference(output, part, value, BOUNDS, by_rows=True)
    return Strayed(index, name, found, part, value)


def _agrees(found: Difference) -> bool:
    return not found.is_beyond and found.relative <= RELATIVE


def _is_pair(values: PlanValues, name: str, module: str, model: ModelValues) -> bool:
    """Tells whether both halves of a result begin a value of the model, as cosines and sines do."""
    whole, rows = values.flat(values.plan.buffer(name)), values.rows_of(name)
    size, odd = divmod(whole.shape[1], 2)
    near = [
        v if rows is None or len(v) == len(whole) else v[rows]
        for _, v in model.near(module)
        if v.shape[1] >= size
    ]
    return not odd and all(
        any(_agrees(difference(name, half, v[:, :size], BOUNDS, by_rows=True)) for v in near)
        for half in whole.split(size, 1)
    )


def leads_to_confirmed(plan: Plan, judged: Sequence[Strayed | bool | None], index: int) -> bool:
    """Tells whether a result reaches a confirmed one through results that nothing is known of."""
    made = set(plan.instructions[index].outputs.values())
    readers = [
        n
        for n, each in enumerate(plan.instructions)
        if n > index and any(plan.root(name).name in made for name in each.inputs.values())
    ]
    return any(
        judged[n] is True or (judged[n] is None and leads_to_confirmed(plan, judged, n))
        for n in readers
    )
