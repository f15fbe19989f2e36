"""Tensors in integers with scales: weights, activations, keys and values that are stored so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

LARGEST = 127
# 127 / m is finite from here on; a block whose largest magnitude is smaller counts as zero.
SMALLEST = 2.0**-100


@dataclass(frozen=True, slots=True)
class Scaled:
    """Integers times the multiplier of their group times the scale of their block; or integers
    less the zero of their block times its scale.

    Attributes:
        values: int8 [..., K], in the range of their bits.
        multipliers: int8 [..., K / group], -8..7; None where every group is a block.
        scales: float32 [..., K / block]; of weights representable in float16.
        zeros: int8 [..., K / block], in the range of values; None where all are 0. Matrices with
            multipliers have none.
    """

    values: Tensor
    multipliers: Tensor | None
    scales: Tensor
    zeros: Tensor | None = None

    @property
    def block(self) -> int:
        """Neighbours that share a scale."""
        return self.values.shape[-1] // self.scales.shape[-1]

    @property
    def shape(self) -> torch.Size:
        return self.values.shape

    def integers(self) -> Tensor:
        """Values times multipliers, int8 [..., K], or values less zeros, int16: integers that only
        lack their scales."""
        if self.zeros is not None:
            blocks: Tensor = self.values.short().unflatten(-1, (self.zeros.shape[-1], -1))
            return (blocks - self.zeros[..., None]).flatten(-2)
        if self.multipliers is None:
            return self.values
        groups: Tensor = self.values.unflatten(-1, (self.multipliers.shape[-1], -1))
        return (groups * self.multipliers[..., None]).flatten(-2)

    def dequantize(self) -> Tensor:
        """The numbers that these stand for, float32 [..., K]."""
        blocks: Tensor = self.integers().float().unflatten(-1, (self.scales.shape[-1], -1))
        return blocks.mul_(self.scales[..., None]).flatten(-2)

    def __getitem__(self, index: Any) -> Scaled:
        """Some of its rows."""
        multipliers = None if self.multipliers is None else self.multipliers[index]
        zeros = None if self.zeros is None else self.zeros[index]
        return Scaled(self.values[index], multipliers, self.scales[index], zeros)

    def __setitem__(self, index: Any, rows: Scaled) -> None:
        self.values[index], self.scales[index] = rows.values, rows.scales


if TYPE_CHECKING:
    Operand = Tensor | Scaled
else:
    Operand = Tensor  # all that the schema of an op can say; plans hand over either


def round_to_int8(x: Tensor, block: int) -> Scaled:
    """x [..., K] in integers with a scale for every block of K.

    With m the largest magnitude of a block: scale = m / 127 and value = x * (127 / m), rounded to
    the nearest integer, halves to the even one. Where m < 2^-100 both are zero.
    """
    blocks = x.float().unflatten(-1, (-1, block))
    largest = blocks.abs().amax(-1, keepdim=True)
    largest = torch.where(largest < SMALLEST, 0.0, largest)
    # A division of tensors: a number over one is a product with its rounded reciprocal.
    inverse = torch.where(largest > 0, torch.full_like(largest, LARGEST) / largest, 0.0)
    values = (blocks * inverse).round()
    return Scaled(values.flatten(-2).to(torch.int8), None, (largest / LARGEST).squeeze(-1))


def stack(parts: Sequence[Scaled]) -> Scaled:
    """Matrices of the same width and kind on top of each other."""
    multipliers = [part.multipliers for part in parts if part.multipliers is not None]
    zeros = [part.zeros for part in parts if part.zeros is not None]
    return Scaled(
        torch.cat([part.values for part in parts]),
        torch.cat(multipliers) if multipliers else None,
        torch.cat([part.scales for part in parts]),
        torch.cat(zeros) if zeros else None,
    )
