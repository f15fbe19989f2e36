"""Compilers that run side by side end together."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event

import pytest

from ingot.errors import ToolchainError
from ingot.targets import compilers
from ingot.targets.compilers import Builder, alone, run_compiler, side_by_side


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_the_first_error_stops_the_others(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no Builder runs them, too, as in `ingot doctor`."""
    begun, ended = Event(), list[str]()
    monkeypatch.setattr(compilers, "usable_processors", lambda: 2)

    def fail() -> None:
        assert begun.wait(60)
        raise error

    def hang() -> None:
        begun.set()
        try:
            run_compiler(("sleep", "20"), 60)
            ended.append("by itself")
        except ToolchainError:
            ended.append("stopped")

    with pytest.raises(error):
        side_by_side([fail, hang])
    assert ended == ["stopped"]


def test_all_jobs_are_done() -> None:
    done: list[int] = []
    side_by_side([lambda n=n: done.append(n) for n in range(9)])  # type: ignore[misc]
    assert sorted(done) == list(range(9))


def test_one_thread_at_a_time_works_under_a_key() -> None:
    working, go_on, order = Event(), Event(), []

    def first() -> None:
        with alone("a"):
            working.set()
            assert go_on.wait(60)
            order.append("first")

    def second() -> None:
        with alone("a"):
            order.append("second")

    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(first)]
        assert working.wait(60)
        jobs.append(pool.submit(second))
        with alone("b"):  # nobody works under that
            assert order == []
        go_on.set()
        for job in jobs:
            job.result()
    assert order == ["first", "second"]


def test_who_waits_for_a_key_ends_with_the_builder() -> None:
    waiting = Event()

    def wait_for_it() -> None:
        waiting.set()
        with alone("held"):
            raise AssertionError("it is held")

    def failing() -> None:
        with Builder() as builder:
            jobs.append(builder.submit(wait_for_it))
            assert waiting.wait(60)
            raise KeyboardInterrupt

    jobs: list[Future[None]] = []
    with alone("held"), pytest.raises(KeyboardInterrupt):
        failing()
    with pytest.raises(ToolchainError, match="stopped"):
        jobs[0].result()
