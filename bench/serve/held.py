"""What a server holds: open files and threads of its processes, seats and pages of its engine."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import TypeVar

import uvloop

from bench.figure import Figure
from bench.serve.running import Running, num_fds, num_threads
from ingot.cli.load.http import Connection, request_bytes
from ingot.cli.load.server import Server

T = TypeVar("T")

AT_ONCE = 64  # things that are done side by side
QUIET_SECONDS = 15.0  # after which what a client left must be given back
POOL_THREADS = (os.cpu_count() or 1) + 4  # that asyncio starts when they are needed, and keeps
FILES, THREADS = "open files", "threads"
GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")


class Held:
    """What one server holds, and what it must hold no more of than before."""

    def __init__(self, running: Running, server: Server) -> None:
        self._running = running
        self._server = server

    def processes(self) -> dict[str, int]:
        """Those of the server by name; a reload starts another engine."""
        engines = self._running.engines()
        return {"front": self._running.pid, **({"engine": engines[-1]} if engines else {})}

    def now(self) -> dict[str, int]:
        """How many files and threads each process has."""
        return {
            f"{what} of the {name}": count(pid)
            for name, pid in self.processes().items()
            for what, count in ((FILES, num_fds), (THREADS, num_threads))
        }

    def more(self, before: dict[str, int]) -> Iterator[Figure]:
        """What is held more than before."""
        for name, now in self._given_back(before).items():
            most = float(POOL_THREADS if name.startswith(THREADS) else 0)
            yield Figure(f"{name}, more", now - before[name], "", most, note=f"now {now}")

    def gauges(self, note: str) -> list[Figure]:
        """Requests and pages that are left, where none must be."""
        left = uvloop.run(self.idle())
        return [
            Figure(name.replace("_", " "), value, unit, 0.0, note=note)
            for name, unit, value in zip(GAUGES, ("", "", "of 1"), left, strict=True)
        ]

    async def idle(self) -> list[float]:
        """The gauges, as soon as all are 0, or when they had time enough for it."""
        loop = asyncio.get_running_loop()
        begin, values = loop.time(), [1.0]
        while any(values) and loop.time() < begin + QUIET_SECONDS:
            await asyncio.sleep(0.25)
            values = await self.values(GAUGES)
        return values

    async def values(self, names: Sequence[str]) -> list[float]:
        """Metrics of the one model, or the first."""
        lines = (await metrics(self._server)).splitlines()
        return [
            float(next(line for line in lines if line.startswith(f"ingot_{name}{{")).split()[-1])
            for name in names
        ]

    def _given_back(self, before: dict[str, int]) -> dict[str, int]:
        """What is held as soon as there are no more files than before, or when there was time."""
        until = time.monotonic() + QUIET_SECONDS
        while True:
            held = self.now()
            more = any(held[name] > before[name] for name in held if name.startswith(FILES))
            if not more or time.monotonic() > until:
                return held
            time.sleep(0.25)  # a server closes a connection a moment after its client


async def metrics(server: Server) -> str:
    """What `/metrics` says."""
    parts: list[bytes] = []
    request = request_bytes(server.address, "GET", "/metrics", {}, b"")
    with closing(Connection(server.address)) as connection:
        await connection.ask(request, parts.append)
    return b"".join(parts).decode()


async def side_by_side(items: Iterable[T], do: Callable[[T], Awaitable[bool]]) -> int:
    """Does something with each, AT_ONCE of them at a time; returns how often it said true."""
    left = iter(items)

    async def work() -> int:
        count = 0
        for item in left:
            count += await do(item)
        return count

    return sum(await asyncio.gather(*(work() for _ in range(AT_ONCE))))
