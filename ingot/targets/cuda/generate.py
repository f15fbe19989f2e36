"""The CUDA code generator: a plan becomes the launches of a step, and their kernels."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from ingot.artifact.architectures import Architecture
from ingot.artifact.codec import encode_plan
from ingot.artifact.launches import KernelSpec, Launch, Launches, Variant, encode_spec
from ingot.artifact.plan import Plan
from ingot.artifact.programs import LOGITS
from ingot.errors import CodegenError
from ingot.targets.cuda import (
    calls_attention,
    calls_experts,
    calls_heads,
    calls_latent,
    calls_products,
    calls_records,
    calls_recurrence,
    calls_rows,
    draws,
)
from ingot.targets.cuda.call import Call, Emit
from ingot.targets.cuda.operands import Operands
from ingot.targets.cuda.tiles import weight_tiles
from ingot.targets.work import Work, where

EMITTERS: Mapping[str, Emit] = {
    **calls_products.CALLS,
    **calls_heads.CALLS,
    **calls_latent.CALLS,
    **calls_rows.CALLS,
    **calls_attention.CALLS,
    **calls_experts.CALLS,
    **calls_records.CALLS,
    **calls_recurrence.CALLS,
}
NO_GROUP = -1


def generate(plan: Plan, architecture: Architecture) -> Launches:
    """The launches of a plan. Raises CodegenError where no kernel takes an op or a shape."""
    operands, kernels = Operands(plan, architecture), KernelNumbers()
    columns = draws.columns_of(architecture)
    with_draws = LOGITS in plan.by_name
    launches, workspace = list[Launch](), 0
    if with_draws:
        launches.append(kernels.launch(draws.feed(plan), NO_GROUP))
    for number, group in enumerate(plan.kernels):
        for call in emit(operands, Work(plan, group)):
            launches.append(kernels.launch(call, number))
            workspace = max(workspace, call.workspace_bytes)
    calls = draws.calls(plan, columns) if with_draws else ()
    drawing = tuple(kernels.launch(call, NO_GROUP) for call in calls)
    return Launches(
        kernels=tuple(kernels.specs),
        launches=tuple(launches),
        workspace_bytes=workspace,
        draws=drawing,
        arrays=draws.arrays(plan.limits, columns) if with_draws else (),
        plan=hashlib.sha256(encode_plan(plan)).hexdigest(),
    )


def emit(operands: Operands, work: Work) -> list[Call]:
    """The calls that carry out a kernel of the plan, in order. Raises CodegenError."""
    known = EMITTERS.get(work.kernel)
    if known is None:
        raise CodegenError(
            f"{where(work.members[-1])} has no CUDA kernel {work.kernel}",
            hint=f"Known: {', '.join(sorted(EMITTERS))}.",
        )
    return list(known(operands, work))


class KernelNumbers:
    """Numbers kernels, so that equal ones are built once."""

    def __init__(self) -> None:
        self.specs: list[KernelSpec] = []
        self._numbers: dict[bytes, int] = {}

    def launch(self, call: Call, group: int) -> Launch:
        """The launch of a call for a kernel of the plan, its own kernels numbered."""
        variants = tuple(
            Variant(
                kernel=self._number(call.spec(choice)),
                grid=choice.grid,
                size=choice.size,
                most=choice.most,
                weights=weight_tiles(choice.constants),
            )
            for choice in call.choices
        )
        return Launch(group=group, arguments=call.passed, variants=variants)

    def _number(self, spec: KernelSpec) -> int:
        number = self._numbers.setdefault(encode_spec(spec), len(self.specs))
        if number == len(self.specs):
            self.specs.append(spec)
        return number
