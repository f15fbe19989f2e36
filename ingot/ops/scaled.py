"""A quantized matrix, as the stages that make, keep and pack it hand it on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Scaled:
    """W [R, K]: integers times the multiplier of their group times the scale of their block.

    Attributes:
        values: int8 [R, K], in the range of their bits.
        multipliers: int8 [R, K / group], -8..7; None where every group is a block.
        scales: float32 [R, K / block], representable in float16.
    """

    values: Tensor
    multipliers: Tensor | None
    scales: Tensor

    def dequantize(self) -> Tensor:
        """The weights that these stand for, float32 [R, K]."""
        scales = self.scales
        if self.multipliers is not None:
            grouped = self.multipliers.float().view(*scales.shape, -1)
            scales = (grouped * scales[..., None]).flatten(1)
        groups = self.values.float().view(*scales.shape, -1)
        return groups.mul_(scales[..., None]).view(self.values.shape)

    @property
    def shape(self) -> torch.Size:
        return self.values.shape

    def __getitem__(self, rows: slice) -> Scaled:
        """Some of its rows."""
        multipliers = None if self.multipliers is None else self.multipliers[rows]
        return Scaled(self.values[rows], multipliers, self.scales[rows])


def stack(parts: Sequence[Scaled]) -> Scaled:
    """Matrices of the same width and kind on top of each other."""
    multipliers = [part.multipliers for part in parts if part.multipliers is not None]
    return Scaled(
        torch.cat([part.values for part in parts]),
        torch.cat(multipliers) if multipliers else None,
        torch.cat([part.scales for part in parts]),
    )
