"""`/models` over a registry of engines that are made up."""

from __future__ import annotations

import asyncio
import json

import pytest

from ingot.serve.http.app import build_app
from ingot.serve.registry.registry import ModelRegistry
from tests.serve.registry.fakes import FakeOpener, settle
from tests.support.asgi import called, calling


def test_what_is_null_was_left_out_and_what_is_wrong_is_named() -> None:
    async def main() -> None:
        async with ModelRegistry(FakeOpener()) as registry:
            app = build_app(registry)
            nulls = {"aliases": None, "pinned": None, "settings": {"device": None, "seed": None}}
            asked = {"model": "a", "source": "one", **nulls}
            loaded = await called(app, "POST", "/models/load", asked)
            assert loaded.status == 200, loaded.body
            assert (await called(app, "POST", "/models/load", asked)).status == 200
            for path, more in (("unload", {"force": None}), ("reload", nulls)):
                more = {"model": "a", **more}
                assert (await called(app, "POST", f"/models/{path}", more)).status == 200
            for value in ("1e308", "1e999", "1" + "0" * 400, '"x"', "NaN"):
                body = f'{{"model": "b", "source": "one", "settings": {{"seed": {value}}}}}'
                refused = await called(app, "POST", "/models/load", body.encode())
                assert refused.status == 400, refused.body
                assert refused.json()["error"]["param"] in ("settings.seed", "settings")
                assert len(registry.status()) == 1

    asyncio.run(main())


def test_a_forced_unload_waits_for_nobody() -> None:
    async def main() -> None:
        async with ModelRegistry(FakeOpener()) as registry:
            registry.register("a", "one")
            app = build_app(registry)
            async with registry.lease("a"):
                for force in (False, True):
                    asked = {"model": "a", "force": force}
                    unload = asyncio.create_task(called(app, "POST", "/models/unload", asked))
                    await settle()
                    assert unload.done() == force

    asyncio.run(main())


@pytest.mark.parametrize("admin", [False, True])
def test_the_progress_of_a_load_is_told_to_administrators_alone(admin: bool) -> None:
    async def main() -> list[dict[str, object]]:
        opener = FakeOpener(holds=True)
        async with ModelRegistry(opener) as registry:
            registry.register("a", "one")
            load = asyncio.create_task(registry.load("a"))
            await settle()
            listed = await called(build_app(registry), "GET", "/models", admin=admin)
            opener.held[0].go.set_result(None)
            await load
            data: list[dict[str, object]] = listed.json()["data"]
            return data

    (shown,) = asyncio.run(main())
    assert shown["state"] == "loading"
    private = {"source", "settings", "error", "progress"}
    assert private & shown.keys() == (private if admin else set())
    assert not admin or shown["progress"] == "opening the artifact"


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
