"""How long each test of the core took, kept between runs in `build/tests/times.json`.

A test has two numbers of seconds, its fixtures included: of the last run, and the most of any run,
which is how long it takes where all that it needs is built anew. `make affected` estimates by them.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from pathlib import Path

import pytest

NAME = "times.json"
CORE = "not thorough and not slow"  # the marks of the core, as pytest's -m has them
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


def is_whole(config: pytest.Config) -> bool:
    """Whether a run is of all tests of the core, as `make test` is."""
    asked = config.option
    parts = (asked.file_or_dir, asked.keyword, asked.deselect, asked.ignore, asked.maxfail)
    parts += (asked.collectonly,)
    return asked.markexpr == CORE and not any(parts)


class Recorder:
    """A plug-in of the process that collects the reports of a run. What a run of all tests does not
    have is forgotten."""

    def __init__(self, folder: Path, *, whole: bool) -> None:
        self.folder, self.whole = folder, whole
        self.seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not BEYOND_THE_CORE & set(report.keywords):
            self.seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """A run that another one overtakes loses its numbers, and nothing else."""
        known = read(self.folder)
        is_whole = self.whole and exitstatus != pytest.ExitCode.INTERRUPTED
        times: Times = defaultdict(dict, {} if is_whole else known)
        for nodeid, seconds in self.seconds.items():
            file, _, test = nodeid.partition("::")
            _, most = known.get(file, {}).get(test, (0.0, 0.0))
            times[file][test] = (round(seconds, 3), round(max(seconds, most), 3))
        part = self.folder / f"{NAME}.{os.getpid()}.part"
        part.write_text(json.dumps(times, sort_keys=True, indent=0))
        part.replace(self.folder / NAME)
