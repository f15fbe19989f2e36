"""Mixers that keep one record of a sequence, on the simulated device, step by step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ingot.artifact.cells import GRID, Cells
from ingot.artifact.plan import Plan
from ingot.artifact.traits import TRAITS, Role
from ingot.compiler.interpret import interpret
from ingot.ops.dtypes import NAMES
from ingot.ops.steps import step_inputs
from ingot.targets.cuda.generate import EMITTERS
from ingot.targets.cuda.rewrite import in_cells
from tests.targets.cuda.runs import PAGE, run
from tests.targets.sketch import Sketch

Kwargs = Mapping[str, Any]


@dataclass(frozen=True)
class Mixer:
    """A call of an op over records: the rows of whole sequences side by side.

    Attributes:
        call: arguments by name, as `tests.ops.sample_inputs` gives them; what it says of a step is
            not used.
    """

    op: str
    call: Kwargs

    @property
    def rows(self) -> dict[str, Tensor]:
        """What has a row for each token."""
        return {n: self.call[n][0] for n in self._of(Role.PRECEDING, Role.OWN)}

    @property
    def weights(self) -> dict[str, Tensor]:
        return {name: self.call[name] for name in self._of(Role.VECTOR)}

    @property
    def state(self) -> str:
        (name,) = TRAITS[self.op].mutates
        return name

    def _of(self, *roles: Role) -> list[str]:
        names = TRAITS[self.op].arguments(*roles)
        return [name for name in names if self.call.get(name) is not None]

    @cached_property
    def plan(self) -> Plan:
        """The op as a plan for GPUs."""
        s, traits = Sketch(), TRAITS[self.op]
        known = {*traits.roles, "out_dtype"}
        attrs = {name: value for name, value in self.call.items() if name not in known}
        for name, x in self.rows.items():
            s.rows(name, *x.shape[1:])
        for name, x in self.weights.items():
            s.weight(name, x)
        s.record(*self.record, self.state)
        given = {*self.rows, *self.weights, self.state, "spans", "records"}
        names = [name if name in given else None for name in traits.roles]
        shape = self.rows["v" if "v" in self.rows else "x"].shape[1:]
        form = NAMES[self.call.get("out_dtype", torch.float32)]
        s.call(self.op, *names, form=form, shape=tuple(shape), **attrs)
        return in_cells(s.plan())

    @property
    def record(self) -> tuple[int, int]:
        """Shape of a record token by token."""
        rows = self.rows
        if self.op == "recurrence":
            return Cells({n: x.shape[1:] for n, x in rows.items()}, GRID).matrices
        if self.op == "selective_scan":
            return rows["b"].shape[1], rows["x"].shape[1]
        kept = len(self.weights["weight"]) - 1 if self.op == "short_conv" else 1
        return kept, rows["x"].shape[1]

    def slots(self, count: int) -> Tensor:
        """Records of free slots, full of NaN."""
        _, *record = self.plan.buffer(self.state).shape
        return torch.full((count, *map(int, record)), torch.nan)

    def step(self, steps: Sequence[Step], slots: Tensor) -> Tensor:
        """The results of some rows of sequences, side by side; records in `slots` go on."""
        inputs, given, out = self._step(steps, slots)
        memory = run(self.plan, EMITTERS, inputs, self.weights, given)
        slots.copy_(memory.read(self.plan.buffer(self.state)))
        return memory.read(out).clone()

    def expected(self, steps: Sequence[Step], slots: Tensor) -> Tensor:
        """The same by the reference."""
        inputs, given, out = self._step(steps, slots)
        (made,) = interpret(self.plan, lambda buffer: self.weights[buffer.name], inputs, given)
        return made[out.name]  # type: ignore[return-value]

    def _step(self, steps: Sequence[Step], slots: Tensor) -> Any:
        rows = {name: torch.cat([x[step.taken] for step in steps]) for name, x in self.rows.items()}
        counts = [step.end - step.begin for step in steps]
        inputs = step_inputs(
            [[0] * count for count in counts],
            [step.begin for step in steps],
            [list(range(-(-step.end // PAGE))) for step in steps],
            PAGE,
            records=[step.slot for step in steps],
        )
        (out,) = (b for b in self.plan.buffers if b.name == "out")
        return inputs, {**rows, self.state: slots}, out


@dataclass(frozen=True)
class Step:
    """Tokens `begin` to `end` of a sequence whose rows begin at row `start` of the call."""

    begin: int
    end: int
    slot: int = 0
    start: int = 0

    @property
    def taken(self) -> slice:
        return slice(self.start + self.begin, self.start + self.end)


def cut(ends: Sequence[int], **place: int) -> Iterator[Step]:
    """Steps of a sequence that end there."""
    for begin, end in zip((0, *ends), ends, strict=False):
        yield Step(begin, end, **place)
