"""`bench/soak.py` in its short form."""

from __future__ import annotations

import asyncio

import pytest

from bench import soak
from bench.serve.running import ingot_serve, serving
from bench.serve.sides import NAME, asks
from ingot.cli.load.server import Pool

pytestmark = pytest.mark.slow

SHORT = ["--streams=100", "--seconds=20", "--settle=5", "--connections=500", "--leavers=200"]


def test_a_server_under_load_gives_everything_back(shakespeare_artifact, capsys):
    missed = soak.main([str(shakespeare_artifact), *SHORT])
    said = capsys.readouterr().out
    assert not missed, said
    assert "errors" in said and "after 200 disconnects" in said


def test_what_is_not_given_back_shows(shakespeare_artifact, monkeypatch):
    monkeypatch.setattr(soak, "QUIET_SECONDS", 1.0)

    async def main(held: soak.Soak, pool: Pool) -> list[float]:
        streams = [asyncio.create_task(pool.ask(ask)) for ask in asks(0, 64, 900)]
        values = await held.idle()
        for stream in streams:
            stream.cancel()
        await asyncio.wait(streams)
        return values

    with serving(ingot_serve([f"{NAME}={shakespeare_artifact}"])) as running:
        left = asyncio.run(main(soak.Soak(running, soak.Plan()), Pool(running.server(NAME))))
    assert all(value > 0 for value in (left[0], left[2]))
