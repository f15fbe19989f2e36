"""Matrices of two artifacts whose numbers differ by more than their formats explain."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ingot.artifact.plan import Buffer
from ingot.compare.kernel_check import dense
from ingot.compare.stored import sources_of
from ingot.compiler.interpret import Value
from ingot.ops.scaled import Scaled

Read = Callable[[Buffer], Value]
# Halves of a last place, relative to a number.
HALF_STEPS = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
# A rounding that was chosen for results, as calibration does, is off by up to so many times what
# rounding to the nearest is. A row is stretched by no more than the squares of these.
CHOSEN = 3.0
LEAST = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """A matrix whose numbers differ.

    Attributes:
        name: of the model's parameters that it is stacked from.
        rows, of_rows: how many rows differ, and of how many.
        error: the largest relative error of a row; explained: what formats explain there.
        factor: by which the rows that differ are larger than the other side's, taken together.
    """

    name: str
    rows: int
    of_rows: int
    error: float
    explained: float
    factor: float


def numbers_apart(
    mine: list[Buffer], read: Read, theirs: list[Buffer], read_theirs: Read
) -> list[Apart]:
    """The matrices that both sides have, and that differ, in the order of the first side."""
    named = {sources_of(buffer): buffer for buffer in theirs}
    pairs = [(each, named[sources_of(each)]) for each in mine if sources_of(each) in named]
    found = [
        _apart(", ".join(sources_of(one)), read(one), read_theirs(other))
        for one, other in pairs
        if len(one.shape) > 1
    ]
    return [each for each in found if each is not None]


def _apart(name: str, one: Value, other: Value) -> Apart | None:
    x, y = (dense(value).flatten(0, -2).double() for value in (one, other))
    if x.shape != y.shape:
        return None
    size = y.norm(dim=-1).clamp_min(1e-30)
    error = (x - y).norm(dim=-1) / size
    steps = (_step(one).square() + _step(other).square()).sqrt() / size
    explained = CHOSEN * steps
    stretched = ((x * y).sum(-1) / size**2 - 1).abs()
    # Errors of rounding are nearly at right angles to a row, unless few numbers make up most of it.
    few = y.square().norm(dim=-1) / size**2
    straight = CHOSEN * (steps**2 + steps * few) + LEAST
    wrong = ~((error <= explained + LEAST) & (stretched <= straight))
    if not wrong.any():
        return None
    worst = int(torch.where(wrong, error, -1.0).argmax())
    a, b = x[wrong], y[wrong]
    return Apart(
        name=name,
        rows=int(wrong.sum()),
        of_rows=len(x),
        error=float(error[worst]),
        explained=float(explained[worst]),
        factor=float((a * b).sum() / (b * b).sum().clamp_min(1e-30)),
    )


def _step(value: Value) -> Tensor:
    """Norm of what rounding to the nearest number of a format changes of each row."""
    if isinstance(value, Scaled):
        scales = value.scales.double()
        if value.multipliers is not None:
            groups = value.multipliers.shape[-1]
            each = value.block // value.group
            wide = scales.repeat_interleave(each, -1)[..., :groups]
            steps, size = wide * value.multipliers.double().abs(), value.group
        else:
            steps, size = scales, value.block
        columns = value.shape[-1]
        counts = torch.full((steps.shape[-1],), size, dtype=torch.float64)
        counts[-1] = columns - size * (len(counts) - 1)
        return ((steps.square() * counts).sum(-1) / 12).sqrt().flatten()
    rounded: Tensor = value.flatten(0, -2).double().norm(dim=-1) * HALF_STEPS[value.dtype]
    return rounded / math.sqrt(3)
