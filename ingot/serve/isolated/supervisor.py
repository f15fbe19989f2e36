"""`Supervisor`: keeps an engine process running."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from copy import copy

from msgspec import Struct

from ingot.errors import (
    ArtifactError,
    DeviceError,
    EngineDeadError,
    IngotError,
    QueueFullError,
    ResourceError,
    VerificationError,
)
from ingot.runtime.metrics import EngineCounters
from ingot.serve.isolated.process import Death, EngineProcess, Lost
from ingot.serve.isolated.suspects import Suspects

# Starts a process, which calls what it is given when it cannot be asked any more.
Start = Callable[[Lost], Awaitable[EngineProcess]]
# Told the new state, "loaded", "loading", "failed" or DAMAGED, and why.
Changed = Callable[[str, str], None]
DAMAGED = "damaged"  # failed, and will until somebody mends the artifact: no engine is at fault

# What may be gone by the next attempt. All others are the artifact's own faults.
_PASSING = (EngineDeadError, ResourceError, DeviceError)

_log = logging.getLogger(__name__)


class Patience(Struct, frozen=True, kw_only=True):
    """Timeouts of an engine, and the limit and backoff of its restarts.

    watchdog_seconds  without a step, while the engine is asked for one, before it is killed
    beat_seconds      from one question to the engine to the next
    open_seconds      for a process to be ready
    most_deaths       within `window_seconds`, after which it is not started again
    longest_pause     of those before a start, in seconds: none, then 1, 2, 4 and so on
    max_waiting       requests that wait for a start; more are refused
    """

    watchdog_seconds: float = 60.0
    beat_seconds: float = 1.0
    open_seconds: float = 600.0
    most_deaths: int = 5
    window_seconds: float = 600.0
    longest_pause: float = 60.0
    max_waiting: int = 512

    def pause(self, deaths: int) -> float | None:
        """Seconds from the latest of so many deaths in a row to a start; None: there is none."""
        if deaths >= self.most_deaths:
            return None
        return 0.0 if deaths < 2 else min(self.longest_pause, 2.0 ** (deaths - 2))


class Supervisor:
    """Starts an engine process, again when it dies, and kills it when it hangs.

    `changed` is told of every start and end. For one event loop.
    """

    def __init__(self, name: str, start: Start, patience: Patience, changed: Changed) -> None:
        self.suspects = Suspects()
        self._name = name
        self._start = start
        self._patience = patience
        self._changed = changed
        self._process: EngineProcess | None = None
        self._news = asyncio.Event()  # set while there is a process, or an error instead of one
        self._error: IngotError | None = None
        self._num_waiting = 0
        self._deaths: deque[float] = deque()
        self._keeper: asyncio.Task[None] | None = None
        self.silent_seconds = 0.0  # for which the engine has made no step that it was asked for

    async def open(self) -> EngineProcess:
        """Starts the first process. Raises what opening the model raises."""
        process = await self._started()
        self._take(process)
        self._keeper = asyncio.create_task(self._keep(process))
        return process

    async def process(self) -> EngineProcess:
        """Process that runs, once there is one.

        Raises QueueFullError where too many wait for it, and EngineDeadError where it is not
        started any more.
        """
        while self._process is None:
            if self._error is not None:
                raise copy(self._error)  # a traceback would grow with every request
            await self._wait()
        return self._process

    async def _wait(self) -> None:
        if self._num_waiting >= self._patience.max_waiting:
            raise QueueFullError(
                f"{self._num_waiting} requests wait for the engine of {self._name}",
                hint="Try again later.",
            )
        self._num_waiting += 1
        try:
            await self._news.wait()
        finally:
            self._num_waiting -= 1

    async def counters(self) -> EngineCounters:
        """Counters of the engine. Raises EngineDeadError while there is none."""
        if self._process is None:
            starting = EngineDeadError(f"the engine of {self._name} is being started")
            raise starting if self._error is None else copy(self._error)
        return await self._process.ping()

    async def close(self) -> None:
        """Ends the process for good. May be called twice."""
        if self._keeper is not None:
            self._keeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeper
        process = self._process
        self._end(EngineDeadError(f"the engine of {self._name} was closed", hint="Load it again."))
        if process is not None:
            await process.close()

    async def _keep(self, process: EngineProcess | None) -> None:
        while process is not None:
            watch = asyncio.create_task(self._watch(process))
            try:
                death = await asyncio.shield(process.ended)
            finally:
                watch.cancel()
            self.suspects.blame(death.fingerprints)
            process = await self._again(death)
            if process is not None:
                self._take(process)

    async def _again(self, death: Death) -> EngineProcess | None:
        """A new process, as soon as one can be started; None when it is time to give up."""
        reason = death.reason
        while True:
            pause = self._patience.pause(self._count_death())
            if pause is None:
                self._fail(
                    f"its engine died {self._patience.most_deaths} times; at last it {reason}"
                )
                return None
            _log.error(
                "the engine of %s %s; it is started again in %g s", self._name, reason, pause
            )
            self._changed("loading", f"the engine {reason}")
            await asyncio.sleep(pause)
            try:
                return await self._started()
            except _PASSING as error:
                reason = f"could not be started again: {error.found}"
            except IngotError as error:
                damaged = isinstance(error, (ArtifactError, VerificationError))
                why = f"its engine {reason}, and cannot be started again: {error.found}"
                self._fail(why, DAMAGED if damaged else "failed")
                return None

    async def _started(self) -> EngineProcess:
        try:
            async with asyncio.timeout(self._patience.open_seconds):
                return await self._start(self._lost)
        except TimeoutError:
            raise EngineDeadError(
                f"the engine of {self._name} was not ready after {self._patience.open_seconds:g} s",
                hint="Look at the load of the machine, or allow it more time.",
            ) from None

    async def _watch(self, process: EngineProcess) -> None:
        """Asks the engine how it fares, again and again, and kills it when it makes no step.

        Beats are counted, not seconds: a front that was halted itself must not kill engines.
        """
        beat, missed, before = self._patience.beat_seconds, 0, EngineCounters()
        with suppress(EngineDeadError):  # then there is nothing left to watch
            answer = process.ping()
            while self.silent_seconds < self._patience.watchdog_seconds:
                await asyncio.sleep(beat)
                if not answer.done():
                    missed += 1
                else:
                    counters = answer.result()
                    missed = missed + 1 if _stands(before, counters) else 0
                    before = counters
                    answer = process.ping()
                self.silent_seconds = missed * beat
            process.kill(f"made no step for {self.silent_seconds:g} s")

    def _take(self, process: EngineProcess) -> None:
        self.silent_seconds = 0.0
        if not process.is_dead:
            self._process = process
            self._news.set()
            self._changed("loaded", "")

    def _lost(self) -> None:
        """Lets what comes wait for the next process."""
        self._process = None
        self._news.clear()

    def _fail(self, why: str, state: str = "failed") -> None:
        _log.error("the model %s has failed: %s", self._name, why)
        self._end(failure(self._name))
        self._changed(state, why)

    def _end(self, error: EngineDeadError) -> None:
        self._process, self._error = None, error
        self._news.set()

    def _count_death(self) -> int:
        """The deaths within the window, with the one of this moment."""
        now = time.monotonic()
        self._deaths.append(now)
        while now - self._deaths[0] > self._patience.window_seconds:
            self._deaths.popleft()
        return len(self._deaths)


def failure(name: str) -> EngineDeadError:
    """Error for requests to a model that cannot be used; the reason may name files."""
    return EngineDeadError(
        f"the model {name} has failed",
        hint="An administrator sees the reason in the list of models, and can load it again.",
    )


def _stands(before: EngineCounters, now: EngineCounters) -> bool:
    """Returns whether the engine is stalled: there was work and no step."""
    return now.num_steps == before.num_steps and now.num_running + now.num_waiting > 0
