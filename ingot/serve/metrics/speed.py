"""`SpeedWatch`: whether a model has become slower than it was.

How fast a model is depends on how many sequences share its steps and on how much of them is
prompts. So windows are compared with windows of about the same load alone.
"""

from __future__ import annotations

import math
from statistics import median
from typing import NamedTuple

WINDOW_SECONDS = 30.0
SETTLE = 5  # windows of a load that make its baseline
IN_A_ROW = 3  # windows that must be worse, one after the other
TOLERANCE = 0.25  # of the baseline
FEWEST_STEPS = 50  # of a window that tells anything


class Window(NamedTuple):
    """Work of an engine in a window of time, and the mean seconds between tokens of a request."""

    num_steps: int
    num_generated: int
    num_computed: int
    step_seconds: float
    latency: float

    @property
    def speed(self) -> float:
        """Generated tokens in a second of steps."""
        return self.num_generated / self.step_seconds

    @property
    def load(self) -> tuple[int, int]:
        """About how many tokens a step generates and computes: powers of two."""
        generated, computed = self.num_generated, self.num_computed
        return round(math.log2(generated / self.num_steps)), round(
            math.log2(max(computed, generated) / self.num_steps)
        )


class Baseline(NamedTuple):
    """Baseline of a load: its first windows."""

    speed: float
    latency: float


class SpeedWatch:
    """Compares the windows of a model with its own first ones.

    The baseline of a load is the median of its first windows, and stays: a model that gets slower
    bit by bit is found as well. `regressed` is true from the third worse window in a row until one
    that is not worse.
    """

    def __init__(self) -> None:
        self._first: dict[tuple[int, int], list[Window]] = {}
        self._baselines: dict[tuple[int, int], Baseline] = {}
        self._worse_in_a_row = 0
        self.regressed = False

    def take(self, window: Window) -> Baseline | None:
        """Takes a window. Returns the baseline if `regressed` has just become true."""
        usable = window.num_steps >= FEWEST_STEPS and window.num_generated and window.step_seconds
        if not usable:
            return None
        baseline = self._baselines.get(window.load)
        if baseline is None:
            self._settle(window)
            return None
        worse = (
            window.speed < baseline.speed * (1 - TOLERANCE)
            or window.latency > baseline.latency * (1 + TOLERANCE)
        )  # fmt: skip
        self._worse_in_a_row = self._worse_in_a_row + 1 if worse else 0
        before, self.regressed = self.regressed, self._worse_in_a_row >= IN_A_ROW
        return baseline if self.regressed and not before else None

    def _settle(self, window: Window) -> None:
        first = self._first.setdefault(window.load, [])
        first.append(window)
        if len(first) == SETTLE:
            speed, latency = median(w.speed for w in first), median(w.latency for w in first)
            self._baselines[window.load] = Baseline(speed, latency)
            del self._first[window.load]
