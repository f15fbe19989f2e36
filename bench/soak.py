"""Keeps a server under load for minutes, and then looks for what it has not given back.

    python -m bench.soak ARTIFACT [--streams 500] [--seconds 600] [--json FILE]

Streams ask again as soon as they are answered, the same requests again and again, so an answer that
differs from the first to the same request shows. Meanwhile others send what must be refused, or
leave, and the model is reloaded once. Then come short connections, and more clients that leave in
the middle of their answers. Memory, files, threads, seats and pages must be what they were.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from bench.figure import Figure, machine, show
from bench.serve.rude import ask_badly, leave, now_and_then
from bench.serve.running import Running, ingot_serve, num_fds, num_threads, rss_mb, serving
from bench.serve.sides import NAME, asks
from ingot.cli.load.demand import Ask
from ingot.cli.load.http import Connection, request_bytes
from ingot.cli.load.server import Pool

SAMPLE_SECONDS = 2.0
QUIET_SECONDS = 15.0  # after which what a client left must be given back
AT_ONCE = 64  # short connections, and clients that leave
ANSWER = 48  # tokens
POOL_THREADS = (os.cpu_count() or 1) + 4  # that asyncio starts when they are needed, and keeps
SLOPE_MB = 0.5  # a minute, of a process after the first one
BAD_PAUSE, LEAVE_PAUSE = 0.25, 0.5  # seconds between requests that are refused, or left
MOST_WAIT = 60.0  # seconds, after which a server sends away by default
LEAST_NOTICED = 0.8  # of the disconnects: some come before the request is known
FILES, THREADS = "open files", "threads"
Sample = tuple[float, float]  # seconds since the beginning, MB
GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of everything; memory counts from `settle` seconds on."""

    streams: int = 500
    seconds: float = 600.0
    settle: float = 60.0
    connections: int = 10_000
    leavers: int = 1_000


@dataclass(slots=True)
class Answers:
    """What came back; `longest` are the seconds that a request waited for its first token."""

    count: int = 0
    errors: list[str] = field(default_factory=list)
    longest: float = 0.0
    different: int = 0
    texts: dict[int, str] = field(default_factory=dict)


def soak(artifact: Path, plan: Plan) -> Iterator[Figure]:
    """All figures, as they are measured."""
    with serving(ingot_serve([f"{NAME}={artifact}"], "--open-admin")) as running:
        yield from Soak(running, plan).run()


class Soak:
    """One server, and its processes by name."""

    def __init__(self, running: Running, plan: Plan) -> None:
        self._server = running.server(NAME)
        self._running = running
        self._plan = plan

    def run(self) -> Iterator[Figure]:
        warm = uvloop.run(self._streams(AT_ONCE, 1.0))  # opens what stays open, such as /proc files
        assert not warm[0].errors, warm[0].errors[0]
        uvloop.run(self.idle())
        before = self._held()
        yield from self._load()
        uvloop.run(self.idle())
        yield from self._same(before)
        refused = uvloop.run(_side_by_side(self._plan.connections, self._connect))
        yield Figure(
            "short connections, not answered", refused, "", 0.0, note=f"of {self._plan.connections}"
        )
        uvloop.run(_side_by_side(self._plan.leavers, partial(leave, self._server)))
        left = uvloop.run(self.idle())
        (noticed,) = uvloop.run(self._values(("requests_cancelled_total",)))
        least = LEAST_NOTICED * self._plan.leavers
        yield Figure("disconnects that were noticed", noticed, "", least, "higher")
        note = f"after {self._plan.leavers} disconnects"
        for name, unit, value in zip(GAUGES, ("", "", "of 1"), left, strict=True):
            yield Figure(name.replace("_", " "), value, unit, 0.0, note=note)
        yield from self._same(before)

    def _load(self) -> Iterator[Figure]:
        plan = self._plan
        found, memory, rude = uvloop.run(self._streams(plan.streams, plan.seconds, rudely=True))
        note = f"{plan.streams} streams, {plan.seconds:g} s"
        yield Figure("answers", found.count, "", note=note)
        note = found.errors[0] if found.errors else ""
        yield Figure("errors", len(found.errors), "", 0.0, note=note)
        yield Figure("answers that differ", found.different, "", 0.0)
        yield Figure("longest wait for a first token", found.longest, "s", MOST_WAIT)
        for name, (count, wrong) in rude.items():
            yield Figure(f"{name}, not as they must be", wrong, "", 0.0, note=f"of {count}")
        for name, samples in memory.items():
            settled = [(when, value) for when, value in samples if when >= plan.settle]
            note = f"from {settled[0][1]:.1f} to {settled[-1][1]:.1f} MB"
            yield Figure(f"memory of the {name}", slope(settled), "MB/min", SLOPE_MB, note=note)

    def _processes(self) -> dict[str, int]:
        """Those of the server by name; a reload starts another engine."""
        engines = self._running.engines()
        return {"front": self._running.pid, **({"engine": engines[-1]} if engines else {})}

    def _held(self) -> dict[str, int]:
        return {
            f"{what} of the {name}": count(pid)
            for name, pid in self._processes().items()
            for what, count in ((FILES, num_fds), (THREADS, num_threads))
        }

    def _given_back(self, before: dict[str, int]) -> dict[str, int]:
        """What is held as soon as there are no more files than before, or when there was time."""
        until = time.monotonic() + QUIET_SECONDS
        while True:
            held = self._held()
            more = any(held[name] > before[name] for name in held if name.startswith(FILES))
            if not more or time.monotonic() > until:
                return held
            time.sleep(0.25)  # a server closes a connection a moment after its client

    def _same(self, before: dict[str, int]) -> Iterator[Figure]:
        for name, now in self._given_back(before).items():
            most = float(POOL_THREADS if name.startswith(THREADS) else 0)
            yield Figure(f"{name}, more", now - before[name], "", most, note=f"now {now}")

    async def _streams(
        self, streams: int, seconds: float, *, rudely: bool = False
    ) -> tuple[Answers, dict[str, list[Sample]], dict[str, tuple[int, int]]]:
        """So many clients for so long; memory in MB, and how rude ones fared beside them."""
        loop, found = asyncio.get_running_loop(), Answers()
        begin = loop.time()
        memory: dict[str, list[Sample]] = {"front": [], "engine": []}
        rude: dict[str, asyncio.Task[tuple[int, int]]] = {}
        with closing(Pool(self._server)) as pool:
            async with asyncio.TaskGroup() as group:
                for number, ask in enumerate(asks(0, streams, ANSWER)):
                    group.create_task(_client(pool, number, ask, begin + seconds, found))
                if rudely:
                    rude = {
                        name: group.create_task(work)
                        for name, work in self._rude(begin + seconds).items()
                    }
                while loop.time() < begin + seconds:
                    for name, pid in self._processes().items():
                        with suppress(FileNotFoundError):  # it was replaced just now
                            memory[name].append((loop.time() - begin, rss_mb(pid)))
                    await asyncio.sleep(min(SAMPLE_SECONDS, seconds / 10))
        return found, memory, {name: task.result() for name, task in rude.items()}

    def _rude(self, until: float) -> dict[str, Coroutine[Any, Any, tuple[int, int]]]:
        return {
            "bad requests": now_and_then(partial(ask_badly, self._server), BAD_PAUSE, until),
            "disconnects": now_and_then(partial(leave, self._server), LEAVE_PAUSE, until),
            "reloads": self._reload(self._plan.settle / 2),
        }

    async def _reload(self, after: float) -> tuple[int, int]:
        """Replaces the engine by another one, under load."""
        await asyncio.sleep(after)
        body = json.dumps({"model": NAME}).encode()
        request = request_bytes(self._server.address, "POST", "/models/reload", {}, body)
        with closing(Connection(self._server.address)) as connection:
            answer = await connection.ask(request, lambda part: None)
        return 1, int(answer.status != 200)

    async def _connect(self, number: int) -> bool:
        """Opens a connection, asks one small thing and closes it; whether that went wrong."""
        request = request_bytes(self._server.address, "GET", "/live", {}, b"")
        with closing(Connection(self._server.address)) as connection:
            try:
                return (await connection.ask(request, lambda body: None)).status != 200
            except OSError:
                return True

    async def idle(self) -> list[float]:
        """The gauges, as soon as all are 0, or when they had time enough for it."""
        loop = asyncio.get_running_loop()
        begin, values = loop.time(), [1.0]
        while any(values) and loop.time() < begin + QUIET_SECONDS:
            await asyncio.sleep(0.25)
            values = await self._values(GAUGES)
        return values

    async def _values(self, names: Sequence[str]) -> list[float]:
        parts: list[bytes] = []
        request = request_bytes(self._server.address, "GET", "/metrics", {}, b"")
        with closing(Connection(self._server.address)) as connection:
            await connection.ask(request, parts.append)
        lines = b"".join(parts).decode().splitlines()
        return [
            float(next(line for line in lines if line.startswith(f"ingot_{name}{{")).split()[-1])
            for name in names
        ]


def slope(samples: Sequence[Sample]) -> float:
    """How fast values grow in a minute: the line that fits them best."""
    seconds, values = np.array(samples).T
    return float(60 * np.polyfit(seconds, values, 1)[0])


async def _client(pool: Pool, number: int, ask: Ask, until: float, found: Answers) -> None:
    """Asks the same until the time is over."""
    loop = asyncio.get_running_loop()
    while loop.time() < until:
        outcome = await pool.ask(ask)
        found.count += 1
        if outcome.error:
            found.errors.append(outcome.error)
            continue
        found.longest = max(found.longest, outcome.ttft)
        found.different += found.texts.setdefault(number, outcome.text) != outcome.text


async def _side_by_side(total: int, do: Callable[[int], Awaitable[bool]]) -> int:
    """Does something so often, some at once; returns how often it said true."""
    numbers = iter(range(total))

    async def work() -> int:
        return sum([await do(number) for number in numbers])

    return sum(await asyncio.gather(*(work() for _ in range(AT_ONCE))))


def main(argv: list[str] | None = None) -> int:
    """Prints the table; 1 if a limit is missed."""
    args = vars(_parser().parse_args(argv))
    artifact, file = args.pop("artifact"), args.pop("json")
    print(f"{machine()}\n")
    return show(soak(artifact, Plan(**args)), file)


def _parser() -> argparse.ArgumentParser:
    doc = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=doc)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--streams", type=int, default=Plan().streams)
    parser.add_argument("--seconds", type=float, default=Plan().seconds)
    parser.add_argument("--settle", type=float, default=Plan().settle, help="before memory counts")
    parser.add_argument("--connections", type=int, default=Plan().connections)
    parser.add_argument("--leavers", type=int, default=Plan().leavers)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
