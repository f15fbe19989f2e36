"""The processors' time that other processes had, from what the kernel says."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from ingot.cli.other_work import TICK_SECONDS, ProcessorTimes

# user, nice, system, idle, iowait, irq, softirq, steal, guest, guest_nice
LINE = "{name} 10 20 30 400 500 1 2 3 10 20\n"


def stat(folder: Path, *names: str) -> Path:
    path = folder / "stat"
    path.write_text("cpu 1 1 1 1 1 1 1 1 1 1\n" + "".join(LINE.format(name=n) for n in names))
    return path


def test_processors_that_this_process_may_use_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 10})
    times = ProcessorTimes.now(stat(tmp_path, "cpu0", "cpu1", "cpu10"))
    assert times.busy == pytest.approx(2 * 66 * TICK_SECONDS)
    assert times.total == pytest.approx(2 * 966 * TICK_SECONDS)
    assert times.own > 0


def test_the_share_is_what_is_neither_idle_nor_ours() -> None:
    before = ProcessorTimes(busy=100.0, total=1000.0, own=5.0)
    after = ProcessorTimes(busy=107.0, total=1010.0, own=9.0)
    assert after.share_of_others(before) == pytest.approx(0.3)
    # Ticks are counted coarsely, and can lie below what this process knows that it had.
    assert replace(after, own=50.0).share_of_others(before) == 0.0
    assert before.share_of_others(before) is None


def test_what_the_system_does_not_tell_is_unknown(tmp_path: Path) -> None:
    nothing = ProcessorTimes.now(tmp_path / "none")
    assert (nothing.busy, nothing.total) == (0, 0) and nothing.share_of_others(nothing) is None


def test_of_this_host_it_is_told() -> None:
    now = ProcessorTimes.now()
    assert 0 < now.busy <= now.total and now.own > 0
