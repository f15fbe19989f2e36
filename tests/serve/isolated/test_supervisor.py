"""When an engine counts as hanging, over processes that are made up."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from ingot.errors import EngineDeadError, QueueFullError
from ingot.runtime.metrics import EngineCounters
from ingot.serve.isolated import client
from ingot.serve.isolated.process import Death, Lost
from ingot.serve.isolated.supervisor import DAMAGED, Patience, Supervisor
from ingot.serve.settings import ModelSettings
from tests.serve.jobs import run
from tests.serve.registry.fakes import settle
from tests.support.fake_engine import FACTS


class Process:
    """Answers with these counts of steps, one a beat, while it has a job; then it is dead."""

    is_dead = False

    def __init__(self, steps: Iterable[int], artifact_id: str = "") -> None:
        self.facts = replace(FACTS, artifact_id=artifact_id)
        self._steps = deque(steps)
        self.over = asyncio.Event()
        self.killed = ""
        self.ended: asyncio.Future[Death] = asyncio.get_running_loop().create_future()

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
        if not self.ended.done():
            self.ended.set_result(Death(why, frozenset()))

    async def close(self) -> None:
        self.kill("was closed")


@pytest.mark.parametrize(
    ("steps", "killed"),
    [([1, 1, 1, 2, 2, 2, 3, 3, 3, 4], False), ([1, 1, 1, 2, 2, 2, 2, 2, 2], True)],
)
def test_an_engine_that_makes_a_step_in_time_is_not_killed(steps: list[int], killed: bool) -> None:
    patience = Patience(beat_seconds=1 / 1024, watchdog_seconds=3 / 1024)

    async def main() -> None:
        process = Process(steps)

        async def start(lost: Lost) -> Process:
            return process

        supervisor = Supervisor("m", start, patience, lambda *_: None)  # type: ignore[arg-type]
        await supervisor.open()
        await process.over.wait()
        assert bool(process.killed) == killed
        await supervisor.close()

    run(main)


def test_pauses_become_longer_up_to_a_bound() -> None:
    patience = Patience(most_deaths=7, longest_pause=5)
    assert [patience.pause(deaths) for deaths in range(1, 8)] == [0, 1, 2, 4, 5, 5, None]


def test_so_many_wait_for_an_engine_and_no_more() -> None:
    async def main() -> None:
        supervisor = Supervisor("m", None, Patience(max_waiting=2), lambda *_: None)  # type: ignore[arg-type]
        *waiting, further = (asyncio.create_task(supervisor.process()) for _ in range(3))
        await settle()
        with pytest.raises(QueueFullError, match="2 requests wait"):
            further.result()
        supervisor._take(Process([]))  # type: ignore[arg-type]
        assert len({id(await each) for each in waiting}) == 1

    run(main)


def test_who_stops_waiting_leaves_room_for_others() -> None:
    async def main() -> None:
        supervisor = Supervisor("m", None, Patience(max_waiting=1), lambda *_: None)  # type: ignore[arg-type]
        left = asyncio.create_task(supervisor.process())
        await settle()
        left.cancel()
        await settle()
        waits = asyncio.create_task(supervisor.process())
        await settle()
        supervisor._take(Process([]))  # type: ignore[arg-type]
        assert await waits

    run(main)


def test_a_new_process_has_not_been_silent() -> None:
    async def main() -> None:
        supervisor = Supervisor("m", None, Patience(), lambda *_: None)  # type: ignore[arg-type]
        supervisor.silent_seconds = 99.0  # as of one that hung
        supervisor._take(Process([]))  # type: ignore[arg-type]
        assert supervisor.silent_seconds == 0

    run(main)


def test_deaths_of_long_ago_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor = Supervisor("m", None, Patience(window_seconds=10), lambda *_: None)  # type: ignore[arg-type]
    times = iter([0.0, 1.0, 10.5, 10.5, 30.0])
    monkeypatch.setattr("ingot.serve.isolated.supervisor.time.monotonic", lambda: next(times))
    assert [supervisor._count_death() for _ in range(5)] == [1, 2, 2, 3, 1]


def test_an_engine_is_not_started_again_on_another_artifact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []

    async def main() -> list[str]:
        given = asyncio.Event()
        old, new = (Process([], name) for name in ("old", "new"))
        coming = iter((old, new))

        async def start(*_: object) -> Process:
            return next(coming)

        def changed(state: str, why: str) -> None:
            told.append(state)
            if len(told) == 3:
                given.set()

        monkeypatch.setattr(client.EngineProcess, "start", start)
        monkeypatch.setattr(client, "_tokenizer_files", lambda path: None)
        opened = client.IsolatedEngine.open("m", "none", ModelSettings(), None, changed)
        engine = await opened
        old.kill("died")
        await given.wait()
        await engine.close()
        return [old.killed, new.killed]

    assert run(main) == ["died", "was opened on another artifact"]
    assert told == ["loaded", "loading", DAMAGED]
