"""Which code asks what time it is. How long something takes, no clock that can be set may say."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("ingot/serve", "ingot/runtime")
KERNELS = "ingot/targets/cpu/kernels"
# The functions of `time`, and of the classes of `datetime`, that read a clock which can be set.
OF_TIME = {"time", "time_ns", "gmtime", "localtime", "ctime", "asctime", "strftime"}
OF_DATES = {"now", "utcnow", "today"}
OF_C = re.compile(r"CLOCK_REALTIME|gettimeofday|system_clock|\btime\((NULL|nullptr|0|&)")
# Who may show a date, and how often it asks for one.
SHOW_DATES = {
    "ingot/serve/http/generate.py": 1,  # `created` of answers
    "ingot/serve/texts/answers.py": 1,  # the same of those about whole texts
    "ingot/serve/registry/entries.py": 1,  # `created` of models that are not loaded
    "ingot/serve/ray/remote.py": 1,  # the same of replicas
    "ingot/serve/registry/events.py": 1,  # `time` of events
    "ingot/serve/registry/loader.py": 1,  # `last_used` of models
    "ingot/serve/session_jobs.py": 1,  # `created` of sessions
    "ingot/serve/metrics/tracing.py": 1,  # the end of a span
    "ingot/serve/edge/logs.py": 2,  # the beginning of a line
    "ingot/runtime/metrics.py": 1,  # the date by which moments are shown, taken once
    "ingot/runtime/chat_sandbox.py": 1,  # what templates write into prompts
}


def dates(source: str) -> Iterator[int]:
    """The lines that call such a function."""
    tree = ast.parse(source)
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            names |= {each.asname or each.name for each in node.names if each.name in OF_TIME}
    yield from (node.lineno for node in ast.walk(tree) if _asks(node, names))


def _asks(node: ast.AST, names: set[str]) -> bool:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        of_dates = node.value.id in ("datetime", "date") and node.attr in OF_DATES
        return of_dates or (node.value.id == "time" and node.attr in OF_TIME)
    return isinstance(node, ast.Name) and node.id in names


def test_only_what_shows_a_date_asks_for_it():
    found = {}
    for path in sorted(each for room in ROOMS for each in (ROOT / room).rglob("*.py")):
        if count := len([*dates(path.read_text())]):
            found[str(path.relative_to(ROOT))] = count
    assert found == SHOW_DATES, "take time.monotonic or time.perf_counter, or say what is shown"


def test_kernels_ask_for_no_date():
    for path in (ROOT / KERNELS).iterdir():
        assert not OF_C.search(path.read_text()), path.name


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.time()",
        "import time\nfield(default_factory=time.time)",
        "from time import monotonic, time as now\nnow()",
        "from time import time_ns\nf(clock=time_ns)",
        "from datetime import datetime\ndatetime.now()",
    ],
)
def test_code_that_asks_for_a_date_is_found(source):
    assert [*dates(source)] == [2]


def test_code_that_measures_is_let_pass():
    assert not [
        *dates("import time\nfrom time import monotonic\ntime.perf_counter() + monotonic()")
    ]
    assert OF_C.search("std::chrono::system_clock::now()") and not OF_C.search("CLOCK_MONOTONIC")
