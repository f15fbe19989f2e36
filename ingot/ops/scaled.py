"""Tensors in integers with scales: weights, activations, keys and values that are stored so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ingot.artifact.formats import DType, Format, rounded_rows
from ingot.ops.dtypes import TORCH_DTYPES

LARGEST = 127
HIGH_UNIT = 255  # an int16 is so many times a high byte, and a low one
LARGEST_OF: Mapping[DType, int] = {"int8": LARGEST, "int16": LARGEST * (HIGH_UNIT + 1)}
# 127 / m is finite from here on; a block whose largest magnitude is smaller counts as zero.
SMALLEST = 2.0**-100


@dataclass(frozen=True, slots=True)
class Scaled:
    """Integers times the multiplier of their group, less its zero, times the scale of their block.

    Attributes:
        values: int8 [..., K], in the range of their bits; activations may be int16.
        multipliers: int8 [..., groups], -8..7, or 1..16 beside zeros; None where every group is a
            block, and all are 1.
        scales: float32 [..., blocks]; of weights representable in float16.
        zeros: int8 [..., groups]; None where all are 0. Beside multipliers, a value times its
            multiplier less its zero lies in -127..127; without them a zero is in the range of
            values.
        block, group: neighbours that share a scale, and those that share a multiplier. The last of
            a row may have fewer. Left out, they are of equal size.
    """

    values: Tensor
    multipliers: Tensor | None
    scales: Tensor
    zeros: Tensor | None = None
    block: int = field(default=0, kw_only=True)
    group: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        columns, blocks = self.values.shape[-1], self.scales.shape[-1]
        groups = blocks if self.multipliers is None else self.multipliers.shape[-1]
        object.__setattr__(self, "block", self.block or columns // blocks)
        default = self.block if self.multipliers is None else columns // groups
        object.__setattr__(self, "group", self.group or default)
        expected = -(-columns // self.block), -(-columns // self.group)
        assert (blocks, groups) == expected, f"{columns} columns, {blocks} blocks, {groups} groups"

    @property
    def shape(self) -> torch.Size:
        return self.values.shape

    def integers(self) -> Tensor:
        """Values times multipliers less zeros, int8 [..., K], or int16 where there are zeros:
        integers that only lack their scales."""
        if self.multipliers is None and self.zeros is None:
            return self.values
        whole = self.values.clone() if self.zeros is None else self.values.short()
        if self.multipliers is not None:
            _scale_up(whole, self.multipliers, self.group)
        if self.zeros is not None:
            whole -= self.zeros.repeat_interleave(self.group, -1)[..., : whole.shape[-1]]
        return whole

    def dequantize(self) -> Tensor:
        """The numbers that these stand for, float32 [..., K]."""
        return _scale_up(self.integers().float(), self.scales, self.block)

    def unflatten(self, rows: Sequence[int]) -> Scaled:
        """Views rows [R, K] in so many dimensions."""
        return self._changed(lambda part: part.unflatten(0, rows))

    def __getitem__(self, index: Any) -> Scaled:
        """Some of its rows."""
        return self._changed(lambda part: part[index])

    def _changed(self, change: Callable[[Tensor], Tensor]) -> Scaled:
        """Applies one change to the rows of each part."""
        multipliers = None if self.multipliers is None else change(self.multipliers)
        zeros = None if self.zeros is None else change(self.zeros)
        values, scales = change(self.values), change(self.scales)
        return replace(self, values=values, multipliers=multipliers, scales=scales, zeros=zeros)

    def __setitem__(self, index: Any, rows: Scaled) -> None:
        self.values[index], self.scales[index] = rows.values, rows.scales


if TYPE_CHECKING:
    Operand = Tensor | Scaled
else:
    Operand = Tensor  # all that the schema of an op can say; plans hand over either


def round_to_int8(x: Tensor, block: int) -> Scaled:
    """x [..., K] in int8; see `round_to`."""
    return round_to(x, rounded_rows(block))


def round_to(x: Tensor, form: Format) -> Scaled:
    """x [..., K] in int8 or int16, with a scale for every block of K.

    With m the largest magnitude of a block and l that of the integers, 127 or 32512: scale = m / l
    and value = x * (l / m), rounded to the nearest integer, halves to the even one. Where
    m < 2^-100 both are zero.
    """
    columns, block, limit = x.shape[-1], form.block, LARGEST_OF[form.dtype]
    blocks = whole_parts(x.float(), block)
    largest = blocks.abs().amax(-1, keepdim=True)
    largest = torch.where(largest < SMALLEST, 0.0, largest)
    # A division of tensors: a number over one is a product with its rounded reciprocal.
    inverse = torch.where(largest > 0, torch.full_like(largest, limit) / largest, 0.0)
    values = (blocks * inverse).round()
    integers = values.flatten(-2)[..., :columns].to(TORCH_DTYPES[form.dtype])
    return Scaled(integers, None, (largest / limit).squeeze(-1), block=block)


def to_planes(values: Tensor) -> Tensor:
    """int16 [..., K] -> the high and the low bytes of each row, int8 [..., 2, K]."""
    high = values.float().div(HIGH_UNIT).round()  # halves do not occur
    low = values.float() - HIGH_UNIT * high
    return torch.stack((high, low), -2).to(torch.int8)


def from_planes(planes: Tensor) -> Tensor:
    """The inverse of `to_planes`."""
    high, low = planes.to(torch.int16).unbind(-2)
    return HIGH_UNIT * high + low


def whole_parts(x: Tensor, size: int) -> Tensor:
    """x [..., K] -> its parts of so many neighbours [..., parts, size]; zeros fill up the last."""
    missing = -x.shape[-1] % size
    parts: Tensor = (pad(x, (0, missing)) if missing else x).unflatten(-1, (-1, size))
    return parts


def _scale_up(x: Tensor, factors: Tensor, size: int) -> Tensor:
    """x [..., K], multiplied in place with a factor for each part of so many neighbours."""
    whole = x.shape[-1] // size
    x[..., : whole * size].unflatten(-1, (whole, size)).mul_(factors[..., :whole, None])
    x[..., whole * size :].mul_(factors[..., whole:])
    return x


def stack(parts: Sequence[Scaled]) -> Scaled:
    """Matrices of the same width and kind on top of each other."""
    multipliers = [part.multipliers for part in parts if part.multipliers is not None]
    zeros = [part.zeros for part in parts if part.zeros is not None]
    return replace(
        parts[0],
        values=torch.cat([part.values for part in parts]),
        multipliers=torch.cat(multipliers) if multipliers else None,
        scales=torch.cat([part.scales for part in parts]),
        zeros=torch.cat(zeros) if zeros else None,
    )


def stack_matrices(matrices: Sequence[Scaled]) -> Scaled:
    """Matrices of the same shape and kind [O, K] as one stack [E, O, K]."""
    whole, count = stack(matrices), len(matrices)

    def divided(rows: Tensor | None) -> Tensor | None:
        return None if rows is None else rows.unflatten(0, (count, -1))

    return Scaled(
        whole.values.unflatten(0, (count, -1)),
        divided(whole.multipliers),
        whole.scales.unflatten(0, (count, -1)),
        divided(whole.zeros),
    )
