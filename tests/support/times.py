"""How long each test of the core took, kept between runs in `build/tests/times.json`.

A test has two numbers of seconds, its fixtures included: of the last run, and the most of any run,
which is how long it takes where all that it needs is built anew. `make affected` estimates by them.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path

import pytest

NAME = "times.json"
BEYOND_THE_CORE = {"thorough", "slow"}

Times = dict[str, dict[str, tuple[float, float]]]  # by file and test: of the last run, and the most


def read(folder: Path) -> Times:
    """What is known; nothing where the file is missing or damaged."""
    try:
        found = json.loads((folder / NAME).read_text())
        return {
            file: {test: (float(last), float(most)) for test, (last, most) in tests.items()}
            for file, tests in found.items()
        }
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


class Recorder:
    """A plug-in of the process that collects the reports of a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not BEYOND_THE_CORE & set(report.keywords):
            self.seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        """A run that another one overtakes loses its numbers, and nothing else."""
        times: Times = defaultdict(dict, read(self.folder))
        for nodeid, seconds in self.seconds.items():
            file, _, test = nodeid.partition("::")
            _, most = times[file].get(test, (0.0, 0.0))
            times[file][test] = (round(seconds, 3), round(max(seconds, most), 3))
        part = self.folder / f"{NAME}.part"
        part.write_text(json.dumps(times, sort_keys=True, indent=0))
        part.replace(self.folder / NAME)
