"""The CUDA code generator: a plan becomes the launches of a step, and their kernels."""

from __future__ import annotations

from collections.abc import Mapping

from ingot.artifact.codec import encode_spec
from ingot.artifact.launches import KernelSpec, Launch, Launches, Variant
from ingot.artifact.plan import Plan
from ingot.errors import CodegenError
from ingot.targets.cuda import calls_heads, calls_products, calls_rows
from ingot.targets.cuda.call import Call, Emit
from ingot.targets.cuda.operands import Operands
from ingot.targets.work import Work, where

EMITTERS: Mapping[str, Emit] = {**calls_products.CALLS, **calls_heads.CALLS, **calls_rows.CALLS}


def generate(plan: Plan) -> Launches:
    """The launches of a plan. Raises CodegenError where no kernel takes an op or a shape."""
    operands, kernels = Operands(plan), Kernels()
    launches, workspace = [], 0
    for number, group in enumerate(plan.kernels):
        for call in emit(operands, Work(plan, group)):
            launches.append(
                Launch(group=number, arguments=call.passed, variants=kernels.variants(call))
            )
            workspace = max(workspace, call.workspace_bytes)
    return Launches(
        kernels=tuple(kernels.specs), launches=tuple(launches), workspace_bytes=workspace
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


class Kernels:
    """Numbers kernels, so that equal ones are built once."""

    def __init__(self) -> None:
        self.specs: list[KernelSpec] = []
        self._numbers: dict[bytes, int] = {}

    def variants(self, call: Call) -> tuple[Variant, ...]:
        """The kernels of a call, numbered."""
        return tuple(
            Variant(
                kernel=self._number(call.spec(choice)),
                grid=choice.grid,
                size=choice.size,
                most=choice.most,
            )
            for choice in call.choices
        )

    def _number(self, spec: KernelSpec) -> int:
        number = self._numbers.setdefault(encode_spec(spec), len(self.specs))
        if number == len(self.specs):
            self.specs.append(spec)
        return number
