"""Measures the share of this host's processors that other work had."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

STAT = Path("/proc/stat")
TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
IDLE = (3, 4)  # of the times in a line: idle, and waiting for a disk
TIMES = 8  # those after these are counted in others, too


@dataclass(frozen=True, slots=True)
class ProcessorTimes:
    """Seconds of the processors that this process may use, summed, since the host started.

    `busy` is what all processes had, and `own` what this one had.
    """

    busy: float
    total: float
    own: float

    @classmethod
    def now(cls, stat: Path = STAT) -> ProcessorTimes:
        """Zeros where the system does not tell."""
        names = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        busy = total = 0
        try:
            lines = [line.split() for line in stat.read_text().splitlines()]
        except OSError:
            lines = []
        for _, *times in (line for line in lines if line and line[0] in names):
            ticks = [int(time) for time in times[:TIMES]]
            total += sum(ticks)
            busy += sum(ticks) - sum(ticks[i] for i in IDLE)
        return cls(busy * TICK_SECONDS, total * TICK_SECONDS, time.process_time())

    def share_of_others(self, since: ProcessorTimes) -> float | None:
        """The share of all time since then that other processes had; None if it is unknown."""
        total = self.total - since.total
        others = (self.busy - since.busy) - (self.own - since.own)
        return max(0.0, others) / total if total > 0 else None
