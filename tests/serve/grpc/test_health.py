"""What is told to those who watch whether a server is ready."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from grpc_health.v1 import health_pb2

from ingot.serve.grpc import health
from ingot.serve.requests.context import ServerContext
from tests.serve.registry.fakes import settle
from tests.support.fake_engine import FakeEngine, FakeModels, says


def test_who_watches_is_told_what_has_changed_alone(run, monkeypatch):
    monkeypatch.setattr(health, "WATCH_SECONDS", 0.0)

    async def work():
        host = SimpleNamespace(draining=False)
        server = ServerContext(models=FakeModels(m=FakeEngine(says("a"))))
        watched = health.Health(server, (), host).Watch(health_pb2.HealthCheckRequest(), None)
        assert (await anext(watched)).status == health.SERVING
        further = asyncio.create_task(anext(watched))
        await settle()
        assert not further.done()
        host.draining = True
        assert (await further).status == health.NOT_SERVING

    run(work())
