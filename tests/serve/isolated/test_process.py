"""What a front keeps of the jobs of an engine process, over a socket that is made up."""

from __future__ import annotations

import asyncio
from socket import socketpair
from typing import Any

import pytest

from ingot.errors import ArtifactError
from ingot.serve.engine import Progress
from ingot.serve.isolated import client
from ingot.serve.isolated.frames import FrameReader, FrameWriter
from ingot.serve.isolated.messages import Ask, Drop, ToEngine, Told
from ingot.serve.isolated.process import EngineProcess
from ingot.serve.isolated.supervisor import Supervisor
from ingot.serve.settings import ModelSettings
from tests.serve.jobs import job, run


class Child:
    """A process that has ended."""

    pid = 1

    def wait(self, seconds: float | None = None) -> int:
        return 3

    def kill(self) -> None:
        pass


class Socket:
    """What was sent to the process."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self._reader = FrameReader[ToEngine](ToEngine)

    def write(self, data: bytes) -> None:
        self.messages += self._reader.feed(data)

    def abort(self) -> None:
        pass

    def is_closing(self) -> bool:
        return False


def test_a_job_that_has_ended_is_neither_aborted_nor_blamed() -> None:
    async def main() -> None:
        process, socket = EngineProcess("m", Child(), lambda: None), Socket()  # type: ignore[arg-type]
        process.connection_made(socket)  # type: ignore[arg-type]
        jobs = [job([1], fingerprint=name) for name in (b"ended", b"left", b"runs")]
        ended, left, _ = (process.begin(each)[0] for each in jobs)
        process.data_received(FrameWriter().frame(Told([(ended, Progress([], True))], [])))
        for number in (ended, left, left):
            process.drop(number)
        assert [type(each) for each in socket.messages] == [Ask, Ask, Ask, Drop]
        process.connection_lost(None)
        death = await process.ended
        assert death.fingerprints == {b"runs"} and death.reason == "ended with exit code 3"

    run(main)


def test_the_first_reason_to_end_a_process_is_told() -> None:
    async def main() -> None:
        process = EngineProcess("m", Child(), lambda: None)  # type: ignore[arg-type]
        process.connection_made(Socket())  # type: ignore[arg-type]
        process.kill("made no step")
        process.kill("was closed")
        process.connection_lost(None)
        assert (await process.ended).reason == "made no step"

    run(main)


def test_a_start_that_is_cancelled_leaves_no_process() -> None:
    killed: list[str] = []

    class Starting(Child):
        def kill(self) -> None:
            killed.append("killed")

    async def main() -> None:
        ours, theirs = socketpair()
        with theirs:
            asked = EngineProcess.start("m", "a.ingot", ModelSettings(), lambda: (Starting(), ours))  # type: ignore[arg-type,return-value]
            start = asyncio.create_task(asked)
            theirs.setblocking(False)
            await asyncio.get_running_loop().sock_recv(theirs, 1)
            start.cancel()
            with pytest.raises(asyncio.CancelledError):
                await start

    run(main)
    assert killed


def test_an_engine_whose_tokenizer_cannot_be_read_leaves_no_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[str] = []

    async def open_process(self: Supervisor) -> None:
        pass

    async def close(self: Supervisor) -> None:
        closed.append("closed")

    def fail(path: str) -> None:
        raise ArtifactError("damaged")

    monkeypatch.setattr(Supervisor, "open", open_process)
    monkeypatch.setattr(Supervisor, "close", close)
    monkeypatch.setattr(client, "_tokenizer_files", fail)

    async def main() -> None:
        with pytest.raises(ArtifactError, match="damaged"):
            await client.IsolatedEngine.open("m", "a.ingot", ModelSettings())

    run(main)
    assert closed
