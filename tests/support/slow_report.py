"""A plug-in of pytest that tells where the time of a run went: `make slow-report`.

Each test and each fixture has a row: its seconds, and how many of them passed while

- a compiler ran (C++, or Triton for GPUs), or was waited for,
- torch exported a model,
- a program ran that was started, most often another interpreter,
- this process waited for anything else: what is left when its own computing is taken away, too.

What a test asks of a fixture counts for the fixture alone. Of two things that run at once the one
that began first counts.
"""

from __future__ import annotations

import subprocess
import threading
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from pathlib import PurePath
from time import monotonic, process_time  # as they are: tests patch those of the module
from typing import Any

import pytest

MOST = 50
KINDS = ("compiler", "export", "programs")
COLUMNS = ("seconds", *KINDS, "waiting")
PROPERTY = "slow_report"

Row = dict[str, Any]  # its name, and seconds by column


@dataclass(eq=False)
class Span:
    """A test or a fixture that runs."""

    name: str
    began: float
    computed: float  # by this process until then
    inner: float = 0.0  # the seconds of fixtures that it asked for, and what they computed
    inner_computed: float = 0.0
    parts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))


class Watch:
    """The spans of this process, and what runs in them, in whichever thread. Clocks give seconds:
    of the wall, and of what this process has computed."""

    def __init__(
        self, clock: Callable[[], float] = monotonic, computed: Callable[[], float] = process_time
    ) -> None:
        self._clock, self._computed = clock, computed
        self.rows: list[Row] = []
        self._spans: list[Span] = []
        self._running: list[str] = []
        self._counted = clock()
        self._lock = threading.RLock()

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """A test or a fixture, perhaps inside of another."""
        with self._lock:
            self._count()
            self._spans.append(Span(name, self._clock(), self._computed()))
        try:
            yield
        finally:
            with self._lock:
                self._count()
                self._end(self._spans.pop())

    @contextmanager
    def running(self, kind: str) -> Iterator[None]:
        """Something of that kind runs."""
        with self._lock:
            self._count()
            self._running.append(kind)
        try:
            yield
        finally:
            with self._lock:
                self._count()
                self._running.remove(kind)

    def _count(self) -> None:
        now = self._clock()
        if self._running and self._spans:
            self._spans[-1].parts[self._running[0]] += now - self._counted
        self._counted = now

    def _end(self, span: Span) -> None:
        seconds, computed = self._clock() - span.began, self._computed() - span.computed
        if self._spans:
            self._spans[-1].inner += seconds
            self._spans[-1].inner_computed += computed
        own = seconds - span.inner
        waiting = own - sum(span.parts.values()) - (computed - span.inner_computed)
        row = {"name": span.name, "seconds": own, "waiting": max(0.0, waiting), **span.parts}
        self.rows.append(row)


WATCH = Watch()


def timed(kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose time counts as of that kind."""

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with WATCH.running(kind):
            return function(*args, **kwargs)

    return run


def pytest_collection_finish() -> None:
    """Late, since importing torch at the beginning would keep everybody waiting."""
    import torch

    from ingot.targets import compilers
    from ingot.targets.cpu import toolchain as cpu
    from ingot.targets.cuda import toolchain as cuda
    from tests.targets.cpu.native import Ahead

    for module in (compilers, cpu, cuda):
        module.run_compiler = timed("compiler", module.run_compiler)  # type: ignore[attr-defined]
    Ahead.result = timed("compiler", Ahead.result)  # type: ignore[method-assign]
    torch.export.export = timed("export", torch.export.export)
    for name in ("wait", "communicate"):
        setattr(subprocess.Popen, name, timed("programs", getattr(subprocess.Popen, name)))


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any) -> Generator[None, Any, Any]:
    with WATCH.span(f"{fixturedef.baseid}::{fixturedef.argname} (fixture)"):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    with WATCH.span(item.nodeid):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    """Rows travel with reports from the processes that run tests to the one that shows them."""
    report = yield
    report.user_properties.extend((PROPERTY, row) for row in WATCH.rows)
    WATCH.rows.clear()
    return report


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Report())


class Report:
    """Shows what all processes have measured."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.rows.extend(row for name, row in report.user_properties if name == PROPERTY)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("where the time went, by room")
        terminalreporter.write_line(table(rooms(self.rows)))
        terminalreporter.section(f"the {MOST} slowest tests and fixtures")
        terminalreporter.write_line(table(sorted(self.rows, key=seconds, reverse=True)[:MOST]))


def rooms(rows: Iterable[Row]) -> list[Row]:
    """Sums over the folders of tests, and over all of them."""
    found: dict[str, Row] = defaultdict(lambda: {"name": "", **dict.fromkeys(COLUMNS, 0.0)})
    for row in rows:
        folder = PurePath(row["name"].partition("::")[0]).parent
        for name in (room_of(folder), "all"):
            found[name]["name"] = name
            for column in COLUMNS:
                found[name][column] += row[column]
    return sorted(found.values(), key=seconds, reverse=True)


def room_of(folder: PurePath) -> str:
    """The room that tests in a folder are of: targets have one each."""
    parts = folder.parts[1:]
    return "/".join(parts[: 2 if parts[:1] == ("targets",) else 1]) or "top level"


def seconds(row: Row) -> float:
    return float(row["seconds"])


def table(rows: Iterable[Row]) -> str:
    """A line a row, the numbers first."""
    head = "".join(f"{column:>10}" for column in COLUMNS)
    lines = ("".join(f"{row[c]:10.1f}" for c in COLUMNS) + f"  {row['name']}" for row in rows)
    return "\n".join((head, *lines))
