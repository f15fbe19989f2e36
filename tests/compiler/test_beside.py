"""Work beside the caller's: what it tells, what it raises, and that it ends."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event, current_thread, main_thread

import pytest
import torch

from ingot.compiler.beside import OnRead, beside
from ingot.errors import CheckpointError


def test_readings_are_told_in_the_thread_that_waits() -> None:
    told: list[tuple[str, object]] = []
    threads = []

    def work(on_read: OnRead) -> None:
        threads.append(current_thread())
        for name in "abc":
            on_read(name)

    with beside(work) as running:
        running.wait(lambda name: told.append((name, current_thread())))
    assert told == [(name, main_thread()) for name in "abc"]
    assert threads[0] is not main_thread() and not threads[0].is_alive()


def test_work_goes_on_while_the_caller_does_something_else() -> None:
    begun, go_on, ended = Event(), Event(), Event()

    def work(on_read: OnRead) -> None:
        begun.set()
        assert go_on.wait(60)
        ended.set()

    with beside(work) as running:
        assert begun.wait(60) and not ended.is_set()
        go_on.set()
        running.wait(pytest.fail)
        assert ended.is_set()


def test_what_the_work_raises_is_raised_where_it_is_waited_for() -> None:
    def work(on_read: OnRead) -> None:
        on_read("a")
        raise CheckpointError("not finite")

    told: list[str] = []
    with pytest.raises(CheckpointError, match="not finite"), beside(work) as running:
        running.wait(told.append)
    assert told == ["a"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_leaving_by_an_error_ends_the_work_at_its_next_reading(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, left = Event(), Event()
    reads: list[int] = []

    def work(on_read: OnRead) -> None:
        begun.set()
        assert left.wait(60)
        for name in range(1000):
            on_read(str(name))
            reads.append(name)

    def shutdown(pool: ThreadPoolExecutor, **given: bool) -> None:
        left.set()
        real(pool, **given)

    real = ThreadPoolExecutor.shutdown
    monkeypatch.setattr(ThreadPoolExecutor, "shutdown", shutdown)  # once the block was left

    def failing() -> None:
        with beside(work):
            assert begun.wait(60)
            raise error("first")

    with pytest.raises(error, match="first"):
        failing()
    assert reads == []


@pytest.mark.parametrize(("threads", "fewer"), [(1, 1), (2, 1), (3, 2)])
def test_a_processor_is_left_to_the_caller(threads: int, fewer: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    found = []
    try:
        with beside(lambda on_read: found.append(torch.get_num_threads())) as running:
            running.wait(pytest.fail)
        assert (found, torch.get_num_threads()) == ([fewer], threads)
    finally:
        torch.set_num_threads(before)
