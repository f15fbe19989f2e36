"""Holds what a kernel left against what it should have left, within the tolerances of its ops.

A kernel of several primitives has the loosest of their tolerances. Terms of products and of
attention cancel, so these are taken relative to the largest of their row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ingot.artifact.plan import Instruction, Plan
from ingot.artifact.traits import traits_of
from ingot.compiler.interpret import Value
from ingot.ops import OPS
from ingot.ops.dtypes import TORCH_DTYPES
from ingot.ops.registry import ROUNDS, KernelTolerance
from ingot.ops.scaled import Scaled


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Statistics of a tensor's finite numbers; the others are counted."""

    smallest: float
    largest: float
    mean: float
    rms: float
    not_finite: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The difference of a value from the expected one.

    Attributes:
        output: the buffer, with ".values" or ".scales" where it has several arrays.
        num_wrong: how many of `count` numbers leave their tolerance.
        place: of the number that leaves its tolerance by most, or else has the largest error.
        error: |got - expected| there, where at most `allowed` would do; `here` is what was got
            there, and `right` what was expected.
        relative: |got - expected| / |expected|, of all numbers together.
    """

    output: str
    num_wrong: int
    count: int
    place: tuple[int, ...]
    error: float
    allowed: float
    here: float
    right: float
    relative: float
    got: Statistics
    expected: Statistics

    @property
    def is_beyond(self) -> bool:
        return self.num_wrong > 0


def statistics(x: Tensor) -> Statistics:
    """Computes the statistics of a tensor."""
    wide = x.double().flatten()
    good = wide[wide.isfinite()]
    if not good.numel():
        good = torch.zeros(1, dtype=torch.float64)
    return Statistics(
        smallest=float(good.min()),
        largest=float(good.max()),
        mean=float(good.mean()),
        rms=float(good.square().mean().sqrt()),
        not_finite=int((~wide.isfinite()).sum()),
    )


def differences(
    plan: Plan, name: str, members: Sequence[Instruction], got: Value, expected: Value
) -> list[Difference]:
    """The differences of each array of a value: its numbers, and its scales where it has some."""
    return [
        difference(
            f"{name}{suffix}",
            mine,
            wanted,
            tolerance(plan, members, wanted.dtype),
            by_rows=any(traits_of(i).matrix or traits_of(i).meets_tokens for i in members),
        )
        for (suffix, mine), (_, wanted) in zip(parts(got), parts(expected), strict=True)
    ]


def difference(
    name: str, got: Tensor, expected: Tensor, bounds: KernelTolerance, *, by_rows: bool
) -> Difference:
    """Compares by |got - expected| <= atol + rtol * |expected|, or the largest of its row."""
    mine, wanted = got.double(), expected.double()
    sizes = wanted.abs().nan_to_num(0, 0, 0)
    if by_rows and wanted.dim() and wanted.shape[-1]:
        sizes = sizes.amax(-1, keepdim=True).expand_as(wanted)
    allowed = bounds.atol + bounds.rtol * sizes
    error = (mine - wanted).abs()
    same = (mine == wanted) | (mine.isnan() & wanted.isnan())
    error = torch.where(same, 0.0, error.nan_to_num(torch.inf, torch.inf))
    wrong = ~(error <= allowed)
    rank = torch.where(wrong, error / allowed.clamp(min=1e-30), 0.0) if wrong.any() else error
    place = _place(rank)

    def at(x: Tensor) -> float:
        return float(x[place]) if wanted.numel() else 0.0

    return Difference(
        output=name,
        num_wrong=int(wrong.sum()),
        count=wanted.numel(),
        place=place,
        error=at(error),
        allowed=at(allowed),
        here=at(mine),
        right=at(wanted),
        relative=_relative(mine, wanted),
        got=statistics(mine),
        expected=statistics(wanted),
    )


def tolerance(plan: Plan, members: Sequence[Instruction], dtype: torch.dtype) -> KernelTolerance:
    """The loosest of its primitives. One that rounds on the way may round to the other neighbour,
    which moves its result as rounding to bfloat16 does; attention rounds its weights to the dtype
    of queries."""
    bounds = [OPS[each.op].tolerance[dtype] for each in members]
    for each in members:
        within = {torch.bfloat16} if any(each.attrs.get(name) for name in ROUNDS) else set()
        if traits_of(each).attends:
            within.add(TORCH_DTYPES[plan.buffer(each.inputs["q"]).dtype])
        bounds += [OPS[each.op].tolerance[x] for x in within if x.is_floating_point]
    return KernelTolerance(max(b.rtol for b in bounds), max(b.atol for b in bounds))


def parts(value: Value) -> list[tuple[str, Tensor]]:
    """The arrays of a value, each with what its name ends in."""
    if isinstance(value, Scaled):
        return [(f".{name}", part) for name, part in value.parts().items()]
    return [("", value)]


def _place(rank: Tensor) -> tuple[int, ...]:
    if not rank.numel():
        return ()
    return tuple(int(i) for i in torch.unravel_index(rank.argmax(), rank.shape))


def _relative(got: Tensor, expected: Tensor) -> float:
    size = float(expected.nan_to_num(0, 0, 0).norm())
    error = float((got - expected).nan_to_num(0, 0, 0).norm())
    return error / size if size else float(error > 0)
