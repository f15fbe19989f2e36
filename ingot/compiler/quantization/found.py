"""What a search finds for groups that lie side by side, and what bounds it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ingot.errors import CheckpointError

RANGES = {8: (-127.0, 127.0), 6: (-32.0, 31.0), 5: (-16.0, 15.0), 4: (-8.0, 7.0)}
LARGEST_SCALE = 65504.0


@dataclass(frozen=True, slots=True)
class Found:
    """Whole numbers as float32, and scales exact in float16.

    Attributes:
        integers: [G, M].
        scales: [blocks].
        multipliers, zeros: [M]; None where the format has none.
    """

    integers: Tensor
    scales: Tensor
    multipliers: Tensor | None = None
    zeros: Tensor | None = None


def refuse_huge(scales: Tensor, groups: Tensor) -> None:
    """Raises CheckpointError if float16 cannot hold a scale of those groups."""
    if bool((scales.abs() > LARGEST_SCALE).any()):
        raise CheckpointError(
            f"weights up to {float(groups.abs().max()):.3g} need a scale that float16 cannot hold",
            hint="Keep them as they are.",
        )
