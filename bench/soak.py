"""Keeps a server under load for minutes, and then looks for what it has not given back.

    python -m bench.soak ARTIFACT [--streams 500] [--seconds 600] [--json FILE]

Streams ask again as soon as they are answered, the same requests again and again, so an answer that
differs from the first to the same request shows. Meanwhile others send what must be refused, or
leave, and the model is reloaded once and its whole KV cache used. Then come short connections, and
more clients that leave in the middle of their answers. Memory, files, threads, seats and pages must
be what they were.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Coroutine, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from bench.figure import Figure, machine, show
from bench.growth import LEAST_SECONDS, Sample, growth
from bench.serve.fill import fill
from bench.serve.held import AT_ONCE, Held, side_by_side
from bench.serve.rude import ask_badly, leave, now_and_then
from bench.serve.running import Running, ingot_serve, rss_mb, serving
from bench.serve.sides import NAME, asks
from ingot.cli.load.demand import LoadAsk
from ingot.cli.load.http import Connection, request_bytes
from ingot.cli.load.server import ConnectionPool

SAMPLE_SECONDS = 2.0
ANSWER = 48  # tokens
NEW_PROMPTS = 20_000  # a seed
BAD_PAUSE, LEAVE_PAUSE = 0.25, 0.5  # seconds between requests that are refused, or left
MOST_WAIT = 60.0  # seconds, after which a server sends away by default
LEAST_NOTICED = 0.8  # of the disconnects: some come before the request is known


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of everything. Memory counts from `settle` seconds on, or from the middle of a run
    that is short. `kv_cache_bytes` None: as much as a server takes by default."""

    streams: int = 500
    seconds: float = 600.0
    settle: float = 60.0
    connections: int = 10_000
    leavers: int = 1_000
    kv_cache_bytes: int | None = None

    @property
    def is_short(self) -> bool:
        """Whether less than LEAST_SECONDS of it would count."""
        return self.seconds < self.settle + LEAST_SECONDS

    @property
    def settled(self) -> float:
        """Seconds after which memory counts."""
        return self.seconds / 2 if self.is_short else self.settle


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
    options = ["--open-admin"]
    if plan.kv_cache_bytes:
        options += ["--kv-cache-bytes", str(plan.kv_cache_bytes)]
    with serving(ingot_serve([f"{NAME}={artifact}"], *options)) as running:
        yield from Soak(running, plan).run()


class Soak:
    """One server, and its processes by name."""

    def __init__(self, running: Running, plan: Plan) -> None:
        self._server = running.server(NAME)
        self._held = Held(running, self._server)
        self._plan = plan
        self._filled = 0.0

    def run(self) -> Iterator[Figure]:
        warm = uvloop.run(self._streams(AT_ONCE, 1.0))  # opens what stays open, such as /proc files
        assert not warm[0].errors, warm[0].errors[0]
        uvloop.run(self._held.idle())
        before = self._held.now()
        yield from self._load()
        uvloop.run(self._held.idle())
        yield from self._held.more(before)
        refused = uvloop.run(side_by_side(range(self._plan.connections), self._connect))
        yield Figure(
            "short connections, not answered", refused, "", 0.0, note=f"of {self._plan.connections}"
        )
        uvloop.run(side_by_side(range(self._plan.leavers), partial(leave, self._server)))
        left = self._held.gauges(f"after {self._plan.leavers} disconnects")
        (noticed,) = uvloop.run(self._held.values(("requests_cancelled_total",)))
        least = LEAST_NOTICED * self._plan.leavers
        yield Figure("disconnects that were noticed", noticed, "", least, "higher")
        yield from left
        yield from self._held.more(before)

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
        yield Figure("all of the KV cache was used after", self._filled, "s", plan.settled)
        for name, samples in memory.items():
            counted = [each for each in samples if each[0] >= plan.settled]
            yield growth(name, counted, short=plan.is_short)

    async def _streams(
        self, streams: int, seconds: float, *, rudely: bool = False
    ) -> tuple[Answers, dict[str, list[Sample]], dict[str, tuple[int, int]]]:
        """So many clients for so long; memory in MB, and how rude ones fared beside them."""
        loop, found = asyncio.get_running_loop(), Answers()
        begin = loop.time()
        memory: dict[str, list[Sample]] = {"front": [], "engine": []}
        rude: dict[str, asyncio.Task[tuple[int, int]]] = {}
        with closing(ConnectionPool(self._server)) as pool:
            async with asyncio.TaskGroup() as group:
                for number, ask in enumerate(asks(0, streams, ANSWER)):
                    group.create_task(_client(pool, number, ask, begin + seconds, found))
                if rudely:
                    rude = {
                        name: group.create_task(work)
                        for name, work in self._rude(begin + seconds).items()
                    }
                while loop.time() < begin + seconds:
                    for name, pid in self._held.processes().items():
                        with suppress(FileNotFoundError):  # it was replaced just now
                            memory[name].append((loop.time() - begin, rss_mb(pid)))
                    await asyncio.sleep(min(SAMPLE_SECONDS, seconds / 10))
        return found, memory, {name: task.result() for name, task in rude.items()}

    def _rude(self, until: float) -> dict[str, Coroutine[Any, Any, tuple[int, int]]]:
        return {
            "bad requests": now_and_then(partial(ask_badly, self._server), BAD_PAUSE, until),
            "disconnects": now_and_then(partial(leave, self._server), LEAVE_PAUSE, until),
            "reloads": self._reload(),
        }

    async def _reload(self) -> tuple[int, int]:
        """Replaces the engine by another one, under load, and uses its whole KV cache."""
        loop = asyncio.get_running_loop()
        begin = loop.time()
        await asyncio.sleep(self._plan.settled / 4)
        body = json.dumps({"model": NAME}).encode()
        request = request_bytes(self._server.address, "POST", "/models/reload", {}, body)
        with closing(Connection(self._server.address)) as connection:
            answer = await connection.ask(request, lambda part: None)
        failed = await fill(self._server, NEW_PROMPTS)
        self._filled = loop.time() - begin
        return 1, int(answer.status != 200 or failed > 0)

    async def _connect(self, number: int) -> bool:
        """Opens a connection, asks one small thing and closes it; whether that went wrong."""
        request = request_bytes(self._server.address, "GET", "/live", {}, b"")
        with closing(Connection(self._server.address)) as connection:
            try:
                return (await connection.ask(request, lambda body: None)).status != 200
            except OSError:
                return True


async def _client(
    pool: ConnectionPool, number: int, ask: LoadAsk, until: float, found: Answers
) -> None:
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
    parser.add_argument("--kv-cache-bytes", type=int, metavar="BYTES", help="of the server")
    parser.add_argument("--connections", type=int, default=Plan().connections)
    parser.add_argument("--leavers", type=int, default=Plan().leavers)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
