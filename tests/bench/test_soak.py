"""`bench/soak.py` in its short form."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from itertools import pairwise

import pytest

from bench import soak
from bench.serve import held
from bench.serve.fill import fill
from bench.serve.running import Command, Running, ingot_serve, rss_mb, serving
from bench.serve.sides import NAME, asks
from ingot.cli.load.server import ConnectionPool

pytestmark = pytest.mark.slow

SHORT = [
    "--streams=100", "--seconds=30", "--connections=500", "--leavers=200",
    "--kv-cache-bytes=30000000",
]  # fmt: skip

# `ingot`, whose front keeps 100 KB of every request.
LEAKS = """
import sys
from ingot.cli.main import main
from ingot.serve.http.reply import Reply

kept, begin = [], Reply.__init__

def keep(self, send):
    kept.append(b"x" * 100_000)
    begin(self, send)

Reply.__init__ = keep
sys.exit(main())
"""


def leaking_serve(models: Sequence[str], *options: str) -> Command:
    serve = ingot_serve(models, *options)
    # In the place of `-m ingot`.
    return lambda port: [sys.executable, "-c", LEAKS, *serve(port)[3:]]


def test_a_server_under_load_gives_everything_back(shakespeare_artifact, capsys):
    missed = soak.main([str(shakespeare_artifact), *SHORT])
    said = capsys.readouterr().out
    assert not missed, said
    assert "errors" in said and "after 200 disconnects" in said


def test_memory_that_is_kept_shows(shakespeare_artifact, monkeypatch):
    monkeypatch.setattr(soak, "ingot_serve", leaking_serve)
    plan = soak.Plan(streams=100, seconds=20, connections=8, leavers=8, kv_cache_bytes=30_000_000)
    figures = {figure.name: figure for figure in soak.soak(shakespeare_artifact, plan)}
    assert not figures["memory of the front, more"].ok
    assert figures["memory of the engine, more"].ok


def test_a_kv_cache_that_was_used_takes_no_more_memory(shakespeare_artifact):
    async def grown() -> list[float]:
        found = [rss_mb(engine)]
        for seed in range(3):
            assert await fill(server, seed) == 0
            found.append(rss_mb(engine))
        return [after - before for before, after in pairwise(found)]

    command = ingot_serve([f"{NAME}={shakespeare_artifact}"], "--kv-cache-bytes", "100000000")
    with serving(command) as running:
        server, (engine,) = running.server(NAME), running.engines()
        first, *others = asyncio.run(grown())
    assert first > 50 and max(others) < 1


def test_what_is_not_given_back_shows(shakespeare_artifact, monkeypatch):
    monkeypatch.setattr(held, "QUIET_SECONDS", 1.0)

    async def main(running: Running) -> list[float]:
        server = running.server(NAME)
        pool = ConnectionPool(server)
        streams = [asyncio.create_task(pool.ask(ask)) for ask in asks(0, 64, 900)]
        values = await held.Held(running, server).idle()
        for stream in streams:
            stream.cancel()
        await asyncio.wait(streams)
        return values

    with serving(ingot_serve([f"{NAME}={shakespeare_artifact}"])) as running:
        left = asyncio.run(main(running))
    assert all(value > 0 for value in (left[0], left[2]))
