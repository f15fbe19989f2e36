"""How far kernels as compiled are from the model, module by module: what number formats cost."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ingot.compare.kernel_check import as_numbers
from ingot.compare.model_values import ModelValues
from ingot.compare.seen import Seen

LAYER = re.compile(r"^(.*\.\d+)(\.|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """The relative error of a kernel's result against the nearest value of its module."""

    number: int
    kernel: str
    origin: str
    output: str
    relative: float

    @property
    def layer(self) -> str:
        """The layer that it is in, or the module itself outside of layers."""
        found = LAYER.match(self.origin)
        return found[1] if found else self.origin


def drift(seen: Sequence[Seen], model: ModelValues, rows: Tensor) -> list[Drift]:
    """The drift of every result that the model computes, too, in the order of the kernels."""
    found = []
    for number, each in enumerate(seen):
        for name in each.work.writes:
            got = as_numbers(each.after[name])
            chosen = rows if each.work.plan.buffer(name).shape[0] == "R" else None
            origin = next(i.origin for i in each.work.members if name in i.outputs.values())
            near = [value for _, value in model.like(origin, got, chosen)]
            errors = [float((got - v).norm() / v.norm().clamp(min=1e-30)) for v in near]
            if errors:
                found.append(
                    Drift(
                        number=number,
                        kernel=each.work.kernel,
                        origin=origin,
                        output=name,
                        relative=min(errors),
                    )
                )
    return found


def by_layer(found: Sequence[Drift]) -> dict[str, Drift]:
    """The last result of each layer, which the next one starts from."""
    return {each.layer: each for each in found}
