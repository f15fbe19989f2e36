"""Drift of compiled kernels from the same plan in float32: what number formats cost."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ingot.compare.kernel_check import WatchedKernels, as_numbers
from ingot.compare.plan_check import PlanValues

LAYER = re.compile(r"^(.*\.\d+)(\.|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """The relative error of a kernel's result, with all that was rounded before it."""

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


def drift(kernels: WatchedKernels, wide: PlanValues) -> list[Drift]:
    """The drift of every result of the first step, in the order of the kernels.

    `wide` has run the whole of the steps.
    """
    step, tokens = kernels.steps.parts["prefill"], kernels.steps.rows["prefill"]
    rows = {"R": tokens[step["logit_rows"].long()], "S": torch.arange(len(step["spans"]))}

    def right(name: str) -> Tensor:
        buffer = wide.plan.buffer(name)
        return wide.flat(buffer)[rows.get(str(buffer.shape[0]), tokens)]

    return [
        Drift(
            number=number,
            kernel=each.work.kernel,
            origin=each.work.origin,
            output=name,
            relative=_relative(as_numbers(each.after[name]), right(name)),
        )
        for number, each in enumerate(kernels.seen["prefill"])
        for name in each.work.writes
    ]


def by_layer(found: Sequence[Drift]) -> dict[str, Drift]:
    """The last result of each layer, which the next one starts from."""
    return {each.layer: each for each in found}


def _relative(got: Tensor, right: Tensor) -> float:
    return float((got - right).norm() / right.norm().clamp(min=1e-30))
