"""When an engine counts as hanging, over processes that are made up."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

import pytest

from ingot.errors import EngineDeadError
from ingot.runtime.metrics import EngineCounters
from ingot.serve.isolated.process import Lost
from ingot.serve.isolated.supervisor import Patience, Supervisor
from tests.serve.jobs import run


class Process:
    """Answers with these counts of steps, one a beat, while it has a job; then it is dead."""

    is_dead = False

    def __init__(self, steps: Iterable[int]) -> None:
        self._steps = deque(steps)
        self.over = asyncio.Event()
        self.killed = ""
        self.ended: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    def ping(self) -> asyncio.Future[EngineCounters]:
        if not self._steps:
            self.over.set()
            raise EngineDeadError("it has ended")
        answer: asyncio.Future[EngineCounters] = asyncio.get_running_loop().create_future()
        answer.set_result(EngineCounters(num_steps=self._steps.popleft(), num_running=1))
        return answer

    def kill(self, why: str) -> None:
        self.killed = why
        self.over.set()

    async def close(self) -> None:
        self.ended.set_result(None)


@pytest.mark.parametrize(
    ("steps", "killed"),
    [([1, 1, 1, 2, 2, 2, 3, 3, 3, 4], False), ([1, 1, 1, 2, 2, 2, 2, 2, 2], True)],
)
def test_an_engine_that_makes_a_step_in_time_is_not_killed(steps: list[int], killed: bool) -> None:
    patience = Patience(beat_seconds=1 / 1024, watchdog_seconds=3 / 1024)

    async def main() -> str:
        process = Process(steps)

        async def start(lost: Lost) -> Process:
            return process

        supervisor = Supervisor("m", start, patience, lambda *_: None)  # type: ignore[arg-type]
        await supervisor.open()
        await process.over.wait()
        await supervisor.close()
        return process.killed

    assert bool(run(main)) == killed


def test_deaths_of_long_ago_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor = Supervisor("m", None, Patience(window_seconds=10), lambda *_: None)  # type: ignore[arg-type]
    times = iter([0.0, 1.0, 10.5, 10.5, 30.0])
    monkeypatch.setattr("ingot.serve.isolated.supervisor.time.monotonic", lambda: next(times))
    assert [supervisor._count_death() for _ in range(5)] == [1, 2, 2, 3, 1]
