"""`EngineProcess`: one engine process as its front sees it, from its start to its end."""

from __future__ import annotations

import asyncio
import itertools
import logging
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ingot.artifact.reader import Check
from ingot.errors import (
    EngineDeadError,
    IngotError,
    ProtocolError,
    RequestError,
    describe,
)
from ingot.runtime.mailbox import Mailbox
from ingot.runtime.metrics import EngineCounters
from ingot.serve.engine import Job, ModelFacts, Progress
from ingot.serve.isolated.frames import FrameReader, FrameWriter
from ingot.serve.isolated.messages import (
    Ask,
    Drop,
    FromEngine,
    Logged,
    Open,
    Ping,
    Pong,
    Ready,
    Refused,
    Told,
)
from ingot.serve.isolated.spawn import Spawn, end_of, spawned
from ingot.serve.settings import ModelSettings

AGAIN = "What it was computing is lost. It is being started again."
Lost = Callable[[], None]
_LAST_SECONDS = 1.0  # for a process to end by itself once its socket is closed

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Death:
    """Reason why an engine process ended, and the fingerprints of the jobs that it was given."""

    reason: str
    fingerprints: frozenset[bytes]


class EngineProcess(asyncio.Protocol):
    """Sends jobs to an engine process, and its answers to their mailboxes. For one event loop.

    `lost` is called when it cannot be asked any more. `ended` becomes its death when all that it
    was doing has failed.
    """

    facts: ModelFacts

    def __init__(self, name: str, child: subprocess.Popen[bytes], lost: Lost) -> None:
        self._name = name
        self._child = child
        self._lost = lost
        self._transport: Any = None
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[Death] = self._loop.create_future()
        self._opened: asyncio.Future[ModelFacts] = self._loop.create_future()
        self._jobs: dict[int, tuple[Mailbox[Progress], bytes]] = {}
        self._pings: dict[int, asyncio.Future[EngineCounters]] = {}
        self._numbers = itertools.count()
        self._writer, self._reader = FrameWriter(), FrameReader[FromEngine](FromEngine)
        self._why = ""
        self._dead = False
        self._burial: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        name: str,
        path: str,
        settings: ModelSettings,
        spawn: Spawn = spawned,
        check: Check = "fast",
        lost: Lost = lambda: None,
    ) -> EngineProcess:
        """Starts a process that opens an artifact, and waits until it is ready.

        `spawn` gives a new process. Raises what opening the model raises, and EngineDeadError for
        a process that ends.
        """
        child, connection = spawn()
        process = cls(name, child, lost)
        try:
            await process._loop.create_unix_connection(lambda: process, sock=connection)
            process._send(Open(path, settings, check))
            process.facts = await process._opened
        except BaseException:
            process.kill("was not needed any more")
            raise
        return process

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def is_dead(self) -> bool:
        """True once it cannot be asked any more."""
        return self._dead

    def begin(self, job: Job) -> tuple[int, Mailbox[Progress]]:
        """Sends a job; its number, and the mailbox that gets what becomes of it.

        Raises RequestError for what no message can hold, and EngineDeadError.
        """
        self._refuse_dead()
        number = next(self._numbers)
        mailbox: Mailbox[Progress] = Mailbox(self._loop)
        try:
            self._send(Ask(number, job))
        except (TypeError, ValueError, OverflowError) as error:
            raise RequestError(
                f"the request cannot be handed on: {describe(error)}",
                hint="Give texts that are UTF-8, and numbers of at most 64 bits.",
            ) from error
        self._jobs[number] = mailbox, job.fingerprint
        return number, mailbox

    def drop(self, number: int) -> None:
        """Aborts a job that has not ended. May be called twice."""
        if self._jobs.pop(number, None) is not None and not self._dead:
            self._send(Drop(number))

    def ping(self) -> asyncio.Future[EngineCounters]:
        """Asks how the engine fares; it answers between two steps. Raises EngineDeadError, as what
        is returned may."""
        self._refuse_dead()
        number = next(self._numbers)
        answer = self._pings[number] = self._loop.create_future()
        self._send(Ping(number))
        return answer

    def kill(self, why: str) -> None:
        """Ends the process at once; `why` goes on after "the engine"."""
        self._why = self._why or why
        self._child.kill()
        if self._transport is None:
            self.connection_lost(None)
        else:
            self._transport.abort()

    async def close(self) -> None:
        """Ends the process, and waits for that."""
        self.kill("was closed")
        await asyncio.shield(self.ended)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._reader.feed(data):
                self._take(message)
        except ProtocolError as error:
            self.kill(f"sent what is no message ({error.found})")

    def connection_lost(self, error: Exception | None) -> None:
        if not self._dead:
            self._dead = True
            self._lost()
            self._burial = self._loop.create_task(self._bury())

    def _take(self, message: FromEngine) -> None:
        match message:
            case Told(progress, faults):
                for number, each in progress:
                    self._deliver(number, each, last=each.finished)
                for number, fault in faults:
                    self._deliver(number, fault.error(), last=True)
            case Pong(number, counters):
                _settle(self._pings.pop(number, None), counters)
            case Logged(level, text):
                _log.log(level, "engine of %s: %s", self._name, text)
            case Ready(facts):
                _settle(self._opened, facts)
            case Refused(fault):
                _fail(self._opened, fault.error())

    def _deliver(self, number: int, item: Any, *, last: bool) -> None:
        found = self._jobs.pop(number, None) if last else self._jobs.get(number)
        if found is not None:  # else its reader has left
            found[0].put(item)

    async def _bury(self) -> None:
        """Waits for the end of the process, and tells everybody who waits for it."""
        code = await asyncio.to_thread(self._wait)
        death = Death(self._why or end_of(code), frozenset(f for _, f in self._jobs.values() if f))
        for mailbox, _ in self._jobs.values():
            mailbox.put(self._error(death))
        self._jobs.clear()
        _fail(self._opened, self._error(death))
        for ping in self._pings.values():
            _fail(ping, self._error(death))
        _settle(self.ended, death)

    def _error(self, death: Death) -> EngineDeadError:
        return EngineDeadError(f"the engine of {self._name} {death.reason}", hint=AGAIN)

    def _wait(self) -> int:
        try:
            return self._child.wait(_LAST_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            return self._child.wait()

    def _send(self, message: object) -> None:
        self._transport.write(self._writer.frame(message))

    def _refuse_dead(self) -> None:
        if self._dead or self._transport.is_closing():
            raise EngineDeadError(f"the engine of {self._name} has ended", hint=AGAIN)


def _settle(future: asyncio.Future[Any] | None, value: object) -> None:
    if future is not None and not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[Any], error: IngotError) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # looked at: nobody has to wait for it
