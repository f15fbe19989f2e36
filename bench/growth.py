"""How much the memory of a process grows, and how much is too much."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bench.figure import Figure

SLOPE_MB = 0.5  # a minute
GROWTH_MB = 4.0  # in all, where there are no minutes
LEAST_SECONDS = 60.0  # over which a slope is more than noise
Sample = tuple[float, float]  # seconds since the beginning, MB


def growth(name: str, samples: Sequence[Sample], *, short: bool) -> Figure:
    """What a process grows by in a minute, or in all of a run that is too short for that."""
    first, last = samples[0][1], samples[-1][1]
    note = f"from {first:.1f} to {last:.1f} MB"
    if short:
        return Figure(f"memory of the {name}, more", last - first, "MB", GROWTH_MB, note=note)
    return Figure(f"memory of the {name}", slope(samples), "MB/min", SLOPE_MB, note=note)


def slope(samples: Sequence[Sample]) -> float:
    """How fast values grow in a minute: the line that fits them best."""
    seconds, values = np.array(samples).T
    return float(60 * np.polyfit(seconds, values, 1)[0])
