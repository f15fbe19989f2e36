"""Searches the scale, the multipliers and the zeros of groups that have a zero each.

A number is (integer * multiplier - zero) * scale. So the numbers of a group lie evenly on a line,
and the search has two parts:

1. The line of every group by itself, without regard to what can be stored. A start spreads the
   range of the group, or a part of it, over the integers. For fixed integers q the best line is
   that of weighted least squares; the integers are then rounded to it and it is fitted once more.
2. The scale of a block, from which every group of it has its multiplier. A few scales are tried,
   and for each the two multipliers nearest to the line's; each trial rounds the group, fits its
   zero to the integers, rounds anew, and counts what is lost. The least sum over a block wins.

Without multipliers a group is a block, and the second part alone tries scales, whose zeros are in
the range of the integers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ingot.compiler.quantization.found import LARGEST_SCALE, RANGES, Found, refuse_huge
from ingot.ops.scaled import LARGEST

# Steps between the ends of a group at a start, by bits.
SPANS = {
    4: (16.0, 15.0, 14.0, 13.0, 12.0, 11.0),
    5: (32.0, 31.0, 30.0, 28.5, 26.5, 24.0),
    6: (64.0, 63.0, 61.5, 59.5, 57.0, 53.0),
}
SHIFTS = (-0.5, 0.0, 0.5)  # of the middle, in steps
LARGEST_MULTIPLIERS = {4: 16.0, 5: 8.0, 6: 4.0}
# Times the least scale that holds all lines of a block.
SCALES = (0.92, 0.96, 1.0, 1.03, 1.07, 1.11, 1.16, 1.21, 1.25, 1.3, 1.35, 1.4)
# Times the scale that spreads a group and zero over the integers, where a group is a block.
OWN_SCALES = (1.05, 1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6)


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups side by side.

    Attributes:
        numbers: [G, M] float32, finite.
        weights: [G, M]: how much the square of an error counts; 0 where a group is filled up.
        sums: [M], of the weights; 1 where all are 0.
        bits: of the integers.
        each: groups of a block.
    """

    numbers: Tensor
    weights: Tensor
    sums: Tensor
    bits: int
    each: int

    def by_block(self, x: Tensor) -> Tensor:
        """A number for each group [M] -> their sum in each block, for each of its groups [M]."""
        return x.view(-1, self.each).sum(1, keepdim=True).expand(-1, self.each).reshape(-1)


@dataclass(frozen=True, slots=True)
class Grid:
    """What the numbers of each group can be, and the error that this leaves; all [M]."""

    scale: Tensor
    multiplier: Tensor
    zero: Tensor
    error: Tensor

    @property
    def offset(self) -> Tensor:
        """The number of integer 0."""
        return -self.zero * self.scale

    def where(self, better: Tensor, other: Grid) -> Grid:
        """This where it is better, and elsewhere the other."""
        return Grid(
            torch.where(better, self.scale, other.scale),
            torch.where(better, self.multiplier, other.multiplier),
            torch.where(better, self.zero, other.zero),
            torch.where(better, self.error, other.error),
        )


def affine(numbers: Tensor, weights: Tensor, bits: int, each: int) -> Found:
    """Groups [G, M], of which `each` share a block, and the weights of their errors -> integers.

    `each` is 0 where a group is a block and has no multiplier. Groups that are not finite become
    zeros. Raises CheckpointError for groups whose scale float16 cannot hold.
    """
    finite = torch.where(numbers.isfinite().all(0), numbers, 0.0)
    refuse_huge(finite.abs().amax(0) / LARGEST, finite)
    # What fills up a group must not widen its range.
    finite = torch.where(weights > 0, finite, finite[:1])
    sums = weights.sum(0)
    groups = Groups(finite, weights, torch.where(sums > 0, sums, 1.0), bits, max(each, 1))
    grid = _in_blocks(groups) if each else _by_themselves(groups)
    integers = round_to_grid(finite, grid.scale, grid.multiplier, grid.zero, bits)
    return Found(
        integers,
        grid.scale[:: groups.each],
        grid.multiplier if each else None,
        grid.zero,
    )


def round_to_grid(x: Tensor, scale: Tensor, multiplier: Tensor, zero: Tensor, bits: int) -> Tensor:
    """Numbers [G, M], or [M], of groups [M] -> their integers, as float32."""
    low, high = RANGES[bits]
    units = x * _inverse(scale)
    return units.add_(zero).div_(multiplier).round_().clamp_(low, high)


def _in_blocks(groups: Groups) -> Grid:
    scales, offsets = _lines(groups)
    low, high = RANGES[groups.bits]
    ends = torch.maximum((offsets + low * scales).abs(), (offsets + high * scales).abs())
    least = torch.maximum(scales / LARGEST_MULTIPLIERS[groups.bits], ends / LARGEST)
    refuse_huge(least, groups.numbers)
    shared = least.view(-1, groups.each).amax(1, keepdim=True).expand(-1, groups.each).reshape(-1)
    best: Grid | None = None
    for factor in SCALES:
        scale = _stored(shared * factor)
        units = scales * _inverse(scale)
        grid = _tried(groups, scale, units.floor(), offsets)
        other = _tried(groups, scale, units.floor() + 1, offsets)
        grid = grid.where(grid.error < other.error, other)
        best = grid if best is None else _better(groups, grid, best)
    assert best is not None
    for step in (-1, 1):  # the zero that fits may have another neighbour fit better
        near = _tried(groups, best.scale, best.multiplier + step, best.offset)
        best = near.where(near.error < best.error, best)
    return _better(groups, _refitted(groups, best), best)


def _by_themselves(groups: Groups) -> Grid:
    low, high = RANGES[groups.bits]
    # A zero in the range of the integers gives lines that reach zero.
    bottom, top = groups.numbers.amin(0).clamp_max(0.0), groups.numbers.amax(0).clamp_min(0.0)
    widest = (top - bottom) / (high - low)
    refuse_huge(widest, groups.numbers)
    best: Grid | None = None
    for factor in OWN_SCALES:
        scale = _stored(widest * factor)
        middle = (top + bottom) / 2 - (low + high) / 2 * scale
        grid = _refitted(groups, _tried(groups, scale, None, middle))
        best = grid if best is None else _better(groups, grid, best)
    assert best is not None
    return best


def _lines(groups: Groups) -> tuple[Tensor, Tensor]:
    """Scales and offsets [M]: the numbers of a group are about q * scale + offset."""
    low, high = RANGES[groups.bits]
    weighted = groups.numbers * groups.weights
    means = weighted.sum(0) / groups.sums
    best = torch.full_like(means, -1.0)
    scales, offsets = torch.zeros_like(means), means
    for scale, offset in _starts(groups.numbers, groups.bits):
        for _ in range(2):
            q = (groups.numbers - offset).mul_(_inverse(scale)).round_().clamp_(low, high)
            middle = (q * groups.weights).sum(0) / groups.sums
            q -= middle
            fit = (q * weighted).sum(0)
            squares = q.square_().mul_(groups.weights).sum(0)
            scale = torch.where(squares > 0, fit / squares, 0.0).clamp_min_(0.0)
            offset = means - middle * scale
        explained = fit * scale
        better = explained > best
        best = torch.where(better, explained, best)
        scales = torch.where(better, scale, scales)
        offsets = torch.where(better, offset, offsets)
    return scales, offsets


def _starts(numbers: Tensor, bits: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Scales and offsets that spread the ranges of groups, or about their middles, over q."""
    low, high = RANGES[bits]
    bottom, top = numbers.amin(0), numbers.amax(0)
    for span in SPANS[bits]:
        scale = (top - bottom) / span
        for shift in SHIFTS:
            yield scale, (top + bottom) / 2 + (shift - (low + high) / 2) * scale


def _tried(groups: Groups, scale: Tensor, multiplier: Tensor | None, offset: Tensor) -> Grid:
    """The grid with the zero that fits best to the integers that an offset gives."""
    low, high = RANGES[groups.bits]
    if multiplier is None:
        m = torch.ones_like(scale)
        least, largest = torch.full_like(scale, low), torch.full_like(scale, high)
    else:
        m = multiplier.clamp(1.0, LARGEST_MULTIPLIERS[groups.bits])
        least, largest = high * m - LARGEST, LARGEST + low * m
    units = groups.numbers * _inverse(scale)
    zero = (-offset * _inverse(scale)).round_().clamp_(least, largest)
    off = (units + zero).div_(m).round_().clamp_(low, high).mul_(m).sub_(units)
    zero = (off.mul_(groups.weights).sum(0) / groups.sums).round_().clamp_(least, largest)
    reached = (units + zero).div_(m).round_().clamp_(low, high).mul_(m).sub_(zero).mul_(scale)
    error = reached.sub_(groups.numbers).square_().mul_(groups.weights).sum(0)
    return Grid(scale, m, zero, error)


def _refitted(groups: Groups, grid: Grid) -> Grid:
    """The grid with the scale that fits its integers best."""
    q = round_to_grid(groups.numbers, grid.scale, grid.multiplier, grid.zero, groups.bits)
    reached = q.mul_(grid.multiplier).sub_(grid.zero)
    weighted = reached * groups.weights
    fit = groups.by_block((weighted * groups.numbers).sum(0))
    squares = groups.by_block(weighted.mul_(reached).sum(0))
    scale = _stored(torch.where(squares > 0, fit / squares, 0.0).clamp_min_(0.0))
    multiplier = grid.multiplier if groups.each > 1 else None
    return _tried(groups, scale, multiplier, grid.offset)


def _better(groups: Groups, grid: Grid, other: Grid) -> Grid:
    """Of two grids the one that loses less in each block."""
    return grid.where(groups.by_block(grid.error) < groups.by_block(other.error), other)


def _stored(scale: Tensor) -> Tensor:
    """Scales as float16 holds them."""
    return scale.clamp_max(LARGEST_SCALE).half().float()


def _inverse(scale: Tensor) -> Tensor:
    return torch.where(scale == 0, 0.0, 1 / scale)
