"""How long a server takes to be ready, and to answer again after an engine was killed."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from statistics import median
from typing import NamedTuple

import uvloop

from bench.figure import Figure
from bench.processes import installed
from bench.serve.running import Running, ingot_serve, serving
from bench.serve.sides import asks
from ingot.cli.load.demand import LoadAsk
from ingot.cli.load.server import ConnectionPool, Server

STREAMS = 8  # of each model, while an engine is killed
VICTIM, OTHER = "victim", "other"


def starts(path: Path, rounds: int) -> Iterator[Figure]:
    """From the start of the process until `/health` says 200, with one artifact and with four."""
    with tempfile.TemporaryDirectory() as byte_code:
        environment = installed(byte_code)
        times: dict[int, list[float]] = {1: [], 4: []}
        for _ in range(rounds + 1):
            for number, found in times.items():
                models = [f"m{each}={path}" for each in range(number)]
                with serving(ingot_serve(models), environment) as running:
                    found.append(running.start_seconds)
    for number, limit in ((1, 0.6), (4, 1.5)):
        name = f"start to ready, {number} artifact{'s' if number > 1 else ''}"
        # The first fills the caches of byte code and files.
        yield Figure(name, median(times[number][1:]), "s", limit, note=f"{rounds} rounds")


class Recovery(NamedTuple):
    """Seconds until the killed engine's model answered, and how the other one fared."""

    seconds: float
    other_errors: int
    other_answers: int


def kills(path: Path, other: Path, rounds: int) -> Iterator[Figure]:
    """`kill -9` of an engine under load, each time of another server."""
    command = ingot_serve([f"{VICTIM}={path}", f"{OTHER}={other}"])
    found = []
    for _ in range(rounds):
        with serving(command) as running:
            found.append(uvloop.run(recovery(running, path)))
    seconds = [each.seconds for each in found]
    note = f"{rounds} kills, longest {max(seconds):.2f} s"
    yield Figure("killed engine answers again", median(seconds), "s", 2.0, note=note)
    answers = sum(each.other_answers for each in found)
    errors = float(sum(each.other_errors for each in found))
    yield Figure("errors of another model", errors, "", 0.0, note=f"{answers} answers")


async def recovery(running: Running, artifact: Path) -> Recovery:
    """Kills the engine of an artifact while both models work."""
    victim, other = running.server(VICTIM), running.server(OTHER)
    loop, stop, begun = asyncio.get_running_loop(), asyncio.Event(), asyncio.Semaphore(0)
    with closing(ConnectionPool(victim)) as pool:
        async with asyncio.TaskGroup() as group:
            tasks = {
                server.model: [
                    group.create_task(_work(server, ask, stop, begun)) for ask in asks(0, STREAMS)
                ]
                for server in (victim, other)
            }
            for _ in range(2 * STREAMS):
                await begun.acquire()
            os.kill(running.engine_of(artifact), signal.SIGKILL)
            killed = loop.time()
            # Each is another: what an engine died with is tried alone, one after the other.
            news = (asks(seed, 1, 1)[0] for seed in count(1))
            while (await pool.ask(next(news))).error:
                await asyncio.sleep(0.005)
            seconds = loop.time() - killed
            stop.set()
    results = [task.result() for task in tasks[OTHER]]
    return Recovery(seconds, sum(e for _, e in results), sum(a for a, _ in results))


async def _work(
    server: Server, ask: LoadAsk, stop: asyncio.Event, begun: asyncio.Semaphore
) -> tuple[int, int]:
    """Asks again and again; returns how many answers and how many errors came."""
    answers = errors = 0
    with closing(ConnectionPool(server)) as pool:
        while not stop.is_set():
            outcome = await pool.ask(ask)
            errors += bool(outcome.error)
            answers += not outcome.error
            begun.release()
            if outcome.error:
                await asyncio.sleep(0.005)
    return answers, errors
