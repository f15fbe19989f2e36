"""A server that is asked for more than it can do, by clients that read slowly or ask for much."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import uvloop

from bench.figure import Figure
from bench.serve.running import Running, ingot_serve, rss_mb, serving
from bench.serve.sides import NAME, asks
from ingot.cli.load.demand import Demand, LoadAsk
from ingot.cli.load.http import Connection, request_bytes
from ingot.cli.load.server import ConnectionPool, Server
from ingot.cli.load.stream import RequestOutcome

CLIENTS = 16
SLOW, SLOW_TOKENS = 64, 900  # clients that read nothing, and what each asks for
ANSWER = 64  # tokens
SECONDS = 15.0  # of each load
FACTORS = (0.5, 0.8, 1.0, 2.0, 4.0)  # of what the server can do
QUEUE = 64  # requests that may wait, so that a short load fills the line
LAG_MS, LAG_MOST_MS = 50.0, 250.0  # of the event loop: of 999 in 1,000 beats, and of each


class Load(NamedTuple):
    """What came of requests that arrive at random: answers a second, and seconds of each."""

    rate: float
    first_tokens: list[float]
    refused: list[float]
    failed: list[str]


def overload(path: Path, rounds: int) -> Iterator[Figure]:
    """Open loads of a share of what the server can do; `rounds` is not used: each is one load."""
    with serving(ingot_serve([f"{NAME}={path}"], "--max-queue", str(QUEUE))) as running:
        server = running.server(NAME)
        uvloop.run(_closed(server, 4))
        capacity = uvloop.run(_closed(server, SECONDS))
        yield Figure("answers a second, at most", capacity, "/s")
        for number, factor in enumerate(FACTORS):
            load = uvloop.run(_open(server, factor * capacity, number))
            yield from _figures(f"load {factor:g} x", factor, load, capacity)
        yield from lag(running)


def _figures(name: str, factor: float, load: Load, capacity: float) -> Iterator[Figure]:
    note = f"{len(load.refused)} refused"
    yield Figure(f"{name}, first token p99", 1e3 * _p99(load.first_tokens), "ms", note=note)
    note = load.failed[0][:60] if load.failed else ""
    yield Figure(f"{name}, neither answered nor 429", len(load.failed), "", 0.0, note=note)
    if factor >= 2:
        share = 100 * load.rate / capacity
        yield Figure(f"{name}, answers, of the most", share, "%", 90.0, "higher")
        yield Figure(f"{name}, refusal p99", 1e3 * _p99(load.refused), "ms", 50.0)


async def _closed(server: Server, seconds: float) -> float:
    """Answers a second to clients that ask again as soon as they are answered."""
    loop = asyncio.get_running_loop()
    begin, count = loop.time(), 0
    with closing(ConnectionPool(server)) as pool:

        async def work(ask: LoadAsk) -> int:
            done = 0
            while loop.time() < begin + seconds:
                done += not (await pool.ask(ask)).error
            return done

        counts = await asyncio.gather(*(work(ask) for ask in asks(1, 2 * CLIENTS, ANSWER)))
        count = sum(counts)
    return count / (loop.time() - begin)


async def _open(server: Server, rate: float, seed: int) -> Load:
    loop = asyncio.get_running_loop()
    demand = Demand(
        num_prompts=int(rate * SECONDS), input_len=32, output_len=ANSWER, seed=100 + seed,
        vocabulary=tuple(range(300, 1300)), rate=rate,
    )  # fmt: skip
    found: list[tuple[RequestOutcome, float]] = []
    with closing(ConnectionPool(server)) as pool:
        begin = loop.time()

        async def send(ask: LoadAsk, moment: float) -> None:
            await asyncio.sleep(begin + moment - loop.time())
            start = loop.time()
            found.append((await pool.ask(ask), loop.time() - start))

        moments = demand.arrivals()
        pairs = zip(demand.asks(), moments, strict=True)
        await asyncio.gather(*(send(ask, float(moment)) for ask, moment in pairs))
        seconds = loop.time() - begin
    answered = [outcome for outcome, _ in found if not outcome.error]
    refused = [took for outcome, took in found if "429" in outcome.error]
    failed = [each.error for each, _ in found if each.error and "429" not in each.error]
    return Load(len(answered) / seconds, [each.ttft for each in answered], refused, failed)


def neighbours(path: Path, rounds: int) -> Iterator[Figure]:
    """Sixteen clients alone, and beside clients that read nothing."""
    with serving(ingot_serve([f"{NAME}={path}"], "--write-timeout", "5")) as running:
        server = running.server(NAME)
        uvloop.run(_pace(server, 0))
        pairs = [
            (uvloop.run(_pace(server, 2 * number)), uvloop.run(_beside(running, 2 * number + 1)))
            for number in range(1, rounds + 1)
        ]
    alone, beside = (median(each) for each in zip(*((a, b[0]) for a, b in pairs), strict=True))
    note = f"{1e3 * alone:.1f} and {1e3 * beside:.1f} ms between tokens, p99"
    ratio = median(b[0] / a for a, b in pairs)
    yield Figure(f"{SLOW} clients that read nothing", ratio, "x", 1.1, note=note)
    grown = max(b[1] for _, b in pairs)
    yield Figure("memory that they take of the front", grown, "MB", float(SLOW))


async def _pace(server: Server, seed: int) -> float:
    """The seconds between two tokens, 99th of 100, of clients at once."""
    with closing(ConnectionPool(server)) as pool:
        found = await asyncio.gather(*(pool.ask(ask) for ask in asks(seed, CLIENTS, 4 * ANSWER)))
    failed = [each.error for each in found if each.error]
    if failed:
        raise RuntimeError(f"a request failed: {failed[0]}")
    return _p99([gap for each in found for gap in each.itl])


async def _beside(running: Running, seed: int) -> tuple[float, float]:
    """The same beside clients that read nothing; and the MB by which the front grew."""
    server, before = running.server(NAME), rss_mb(running.pid)
    body = {"model": NAME, "max_tokens": SLOW_TOKENS, "stream": True, "ignore_eos": True}
    bodies = [{**body, "prompt": ask.prompt} for ask in asks(1000 + seed, SLOW, 1)]
    connections = [await _unread(server, each) for each in bodies]
    try:
        pace = await _pace(server, seed)
        return pace, rss_mb(running.pid) - before
    finally:
        for writer in connections:
            writer.close()


async def _unread(server: Server, body: object) -> asyncio.StreamWriter:
    """Sends a request whose answer nobody reads."""
    _, writer = await asyncio.open_connection("127.0.0.1", server.address.port, limit=1)
    data = json.dumps(body).encode()
    writer.write(request_bytes(server.address, "POST", "/v1/completions", {}, data))
    await writer.drain()
    return writer


def lag(running: Running) -> Iterator[Figure]:
    """How late the event loop ran, from the beginning on: bounds of its histogram."""
    buckets = uvloop.run(_buckets(running.server(NAME)))
    total = buckets[-1][1]
    for name, share, limit in (("999 in 1,000 beats", 0.999, LAG_MS), ("all", 1.0, LAG_MOST_MS)):
        bound = next(bound for bound, count in buckets if count >= share * total)
        yield Figure(f"event loop late, {name}", 1e3 * bound, "ms", limit, note=f"of {total:.0f}")


async def _buckets(server: Server) -> list[tuple[float, float]]:
    """The bounds in seconds, and how many beats were within each."""
    parts: list[bytes] = []
    request = request_bytes(server.address, "GET", "/metrics", {}, b"")
    with closing(Connection(server.address)) as connection:
        await connection.ask(request, parts.append)
    name = 'ingot_event_loop_lag_seconds_bucket{le="'
    lines = [line for line in b"".join(parts).decode().splitlines() if line.startswith(name)]
    pairs = (line.removeprefix(name).split('"} ') for line in lines)
    return [(float(bound), float(count)) for bound, count in pairs]


def _p99(values: Sequence[float]) -> float:
    return float(np.percentile(values, 99)) if values else 0.0
