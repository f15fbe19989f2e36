"""Tensors in integers with scales: weights, activations, keys and values that are stored so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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


PARTS = ("values", "scales", "multipliers", "zeros", "minimums")


@dataclass(frozen=True, slots=True)
class Scaled:
    """Integers times the multiplier of their group, less its zero, times the scale of their block;
    with minimums, integers times their multiplier and scale, less the zero times the minimum.

    Attributes:
        values: int8 [..., K], in the range of their bits; from 0 on beside minimums. Activations
            may be int16.
        multipliers: int8 [..., groups], of the range that `Format` says; None where every group is
            a block, and all are 1.
        scales: float32 [..., blocks]; of weights representable in float16.
        zeros: int8 [..., groups]; None where all are 0, or 1 beside minimums. Beside multipliers
            and without minimums, a value times its multiplier less its zero lies in -127..127;
            without multipliers a zero is in the range of values.
        minimums: float32 [..., blocks]; None where zeros have the scale of their block.
        block, group: neighbours that share a scale, and those that share a multiplier. The last of
            a row may have fewer. Left out, they are of equal size.
    """

    values: Tensor
    multipliers: Tensor | None
    scales: Tensor
    zeros: Tensor | None = None
    minimums: Tensor | None = None
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
        """Values times multipliers less zeros that have no minimums: int8 [..., K], or int16 where
        there is anything but values. They only lack their scales."""
        zeros = None if self.minimums is not None else self.zeros
        if self.multipliers is None and zeros is None:
            return self.values
        whole = self.values.short()
        if self.multipliers is not None:
            _scale_up(whole, self.multipliers, self.group)
        if zeros is not None:
            whole -= self._wide(zeros)
        return whole

    def taken_off(self) -> Tensor:
        """The zeros that minimums are multiplied with, int8 [..., K]."""
        return torch.ones_like(self.values) if self.zeros is None else self._wide(self.zeros)

    def dequantize(self) -> Tensor:
        """The numbers that these stand for, float32 [..., K].

        Each product is exact: float32 has the digits of a scale, a multiplier and a value.
        """
        if self.zeros is not None and self.minimums is None:
            return _scale_up(self.integers().float(), self.scales, self.block)
        numbers = self.values.float()
        _scale_up(numbers, self._of_groups(self.scales, self.multipliers), self.group)
        if self.minimums is not None:
            numbers -= self._wide(self._of_groups(self.minimums, self.zeros))
        return numbers

    def _of_groups(self, scales: Tensor, small: Tensor | None) -> Tensor:
        """The scales of blocks times what each group has; None where groups are blocks."""
        if small is None:
            return scales
        wide = scales.repeat_interleave(self.block // self.group, -1)
        return wide[..., : small.shape[-1]] * small

    def _wide(self, of_groups: Tensor) -> Tensor:
        """What groups have, for each of their columns."""
        return of_groups.repeat_interleave(self.group, -1)[..., : self.shape[-1]]

    def unflatten(self, rows: Sequence[int]) -> Scaled:
        """Views rows [R, K] in so many dimensions."""
        return self._changed(lambda part: part.unflatten(0, rows))

    @classmethod
    def of(cls, parts: Mapping[str, Tensor], block: int, group: int) -> Scaled:
        """The tensors that `parts` has given."""
        optional = (parts.get(name) for name in ("zeros", "minimums"))
        small = parts.get("multipliers")
        return cls(parts["values"], small, parts["scales"], *optional, block=block, group=group)

    def parts(self) -> dict[str, Tensor]:
        """Those of its tensors that it has, by their names."""
        every = {name: getattr(self, name) for name in PARTS}
        return {name: part for name, part in every.items() if part is not None}

    def __getitem__(self, index: Any) -> Scaled:
        """Some of its rows."""
        return self._changed(lambda part: part[index])

    def _changed(self, change: Callable[[Tensor], Tensor]) -> Scaled:
        """Applies one change to the rows of each part."""
        changed = {name: change(part) for name, part in self.parts().items()}
        return Scaled.of(changed, self.block, self.group)

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
    every = [part.parts() for part in parts]
    joined = {name: torch.cat([each[name] for each in every]) for name in every[0]}
    return Scaled.of(joined, parts[0].block, parts[0].group)


def stack_matrices(matrices: Sequence[Scaled]) -> Scaled:
    """Matrices of the same shape and kind [O, K] as one stack [E, O, K]."""
    return stack(matrices).unflatten((len(matrices), -1))
