"""An edge around an application that another server runs."""

from __future__ import annotations

import asyncio

from ingot.serve.edge import edge as module
from ingot.serve.edge.edge import Edge
from ingot.serve.http.app import build_app
from tests.support.fake_engine import FakeModels
from tests.support.until import until


def test_it_measures_and_asks_while_the_application_runs(monkeypatch):
    monkeypatch.setattr(module, "_BEAT_SECONDS", 0.001)

    async def main() -> None:
        asked = []

        async def poll():
            asked.append(True)
            return {}

        edge = Edge(poll=poll)
        sent, ends = [], asyncio.Event()

        async def receive():
            if sent:
                await ends.wait()
                return {"type": "lifespan.shutdown"}
            return {"type": "lifespan.startup"}

        async def send(message):
            sent.append(message["type"])

        app = edge.wrap(build_app(FakeModels(), gate=edge, beside=edge.beating))
        scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
        task = asyncio.create_task(app(scope, receive, send))
        await until(lambda: asked)
        assert edge.telemetry.board.histogram("event_loop_lag_seconds").count
        ends.set()
        await task
        assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
