"""Mixtures of experts as plans: routers, and the two products with what they are given."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ingot.artifact.formats import DType
from ingot.artifact.plan import Attr, Group, Plan
from ingot.compiler.interpret import Value
from ingot.ops.dtypes import TORCH_DTYPES
from ingot.targets.cuda.calls_experts import CALLS
from tests.support import samples
from tests.targets.cpu.experts import Experts
from tests.targets.cuda.runs import Memory, expected, rows_of_one, run
from tests.targets.sketch import Sketch

MOST = 65  # rows of a step


@dataclass(frozen=True)
class Mixture:
    """Experts whose rows, and what is made of them, are of `dtype`."""

    experts: Experts
    dtype: DType = "bfloat16"

    def __str__(self) -> str:
        return f"{self.experts.name}-{self.dtype}"

    @cached_property
    def sketch(self) -> tuple[Plan, dict[str, Value]]:
        s = Sketch()
        self.experts.case(s, self.dtype)
        return apart(s.plan()), s.weights

    def given(self, rows: int) -> dict[str, Value]:
        """Logits and x; the first rows are the same for any number of rows."""
        return {
            name: samples.normal(torch.Generator().manual_seed(len(name)), MOST, columns)[:rows].to(
                TORCH_DTYPES[dtype]
            )
            for name, columns, dtype in (
                ("logits", self.experts.count, "float32"),
                ("x", self.experts.size, self.dtype),
            )
        }

    def run(self, rows: int, given: dict[str, Value] | None = None, **weights: Value) -> Memory:
        """The memory after a step of so many rows; `weights` take the place of some."""
        plan, own = self.sketch
        return run(plan, CALLS, rows_of_one(rows), own | weights, given or self.given(rows))

    def results(self, rows: int) -> dict[str, Tensor]:
        memory = self.run(rows)
        return {name: memory.read(self.sketch[0].buffer(name)) for name in ("inner", "sum")}

    def right(self, rows: int, given: dict[str, Value] | None = None) -> dict[str, Tensor]:
        """By the references."""
        plan, weights = self.sketch
        return expected(plan, rows_of_one(rows), weights, given or self.given(rows))


def routed(
    experts: int, with_bias: bool, attrs: dict[str, Attr], logits: Tensor
) -> tuple[Tensor, Tensor]:
    """The shares of rows of logits: those of the kernel, and those of the reference."""
    s = Sketch()
    name = s.rows("logits", experts, form=DTYPES[logits.dtype])
    bias = s.weight("bias", samples.normal(s.drawn("bias"), experts)) if with_bias else None
    s.call("route", name, bias, out="shares", **attrs)
    plan, inputs = apart(s.plan()), rows_of_one(len(logits))
    given: dict[str, Value] = {"logits": logits}
    got = run(plan, CALLS, inputs, s.weights, given).read(plan.buffer("shares"))
    return got, expected(plan, inputs, s.weights, given)["shares"].view_as(got)


DTYPES: dict[torch.dtype, DType] = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


def apart(plan: Plan) -> Plan:
    """The plan with a kernel for each instruction."""
    groups = (Group(kernel=i.op, first=n, count=1) for n, i in enumerate(plan.instructions))
    return replace(plan, groups=tuple(groups))
