"""`/models` over a registry of engines that are made up."""

from __future__ import annotations

import asyncio
import json

import pytest

from ingot.serve.http.app import build_app
from ingot.serve.registry.registry import ModelRegistry
from tests.serve.registry.fakes import FakeOpener
from tests.support.asgi import called, calling


@pytest.mark.parametrize("admin", [False, True])
def test_what_can_name_files_is_told_to_administrators_alone(admin: bool) -> None:
    async def main() -> tuple[str, list[dict[str, str]]]:
        async with ModelRegistry(FakeOpener()) as registry:
            registry.register("a", "missing")
            app = build_app(registry)
            async with calling(app, "GET", "/models/events", admin=admin) as events:
                await events.until(b": models\n\n")
                assert (await called(app, "POST", "/models/load", {"model": "a"})).status == 503
                await events.until(b'"failed"')
                listed = await called(app, "GET", "/models", admin=admin)
                events.leave()
        lines = events.body.decode().splitlines()
        return listed.body.decode(), [json.loads(e[6:]) for e in lines if e.startswith("data: ")]

    listed, events = asyncio.run(main())
    assert [event["state"] for event in events] == ["loading", "loading", "failed"]
    assert ("secret" in listed, "secret" in str(events)) == (admin, admin)
    assert all(event["name"] == "a" and event["time"] for event in events)
