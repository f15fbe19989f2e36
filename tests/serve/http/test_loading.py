"""Requests for a model that takes long to load."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager

import pytest

from ingot.serve.edge.settings import ClientLimits
from ingot.serve.http.app import app_of
from ingot.serve.open_model import open_model
from ingot.serve.progress import facts_of
from ingot.serve.registry.opening import need_of
from ingot.serve.registry.registry import ModelRegistry
from ingot.serve.requests.context import HttpSettings, ServerContext
from ingot.serve.settings import ModelSettings
from tests.serve.registry.fakes import FakeOpener, answer
from tests.support.asgi import called
from tests.support.fake_engine import FACTS, FakeModels
from tests.support.until import until

ASKED = {"model": "a", "prompt": [1]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", ASKED),
        ("/v1/completions", ASKED | {"stream": True}),
        ("/tokenize", {"model": "a", "prompt": "a"}),
        ("/detokenize", {"model": "a", "tokens": [1]}),
    ],
)
def test_who_waits_too_long_is_told_that_it_loads_and_the_load_goes_on(path, body):
    async def main():
        opener = FakeOpener(holds=True)
        async with ModelRegistry(opener) as registry:
            registry.register("a", "one")
            site = ServerContext(models=registry, settings=HttpSettings(load_seconds=0.01))
            call = await called(app_of(site), "POST", path, body)
            assert (call.status, call.json()["error"]["code"]) == (503, "loading")
            assert call.headers["retry-after"] and call.headers["x-should-retry"] == "true"
            await until(lambda: opener.held)  # on a busy host the request may have ended before
            (held,) = opener.held
            held.go.set_result(None)
            assert await answer(registry, "a") == "one" and opener.num_opened == 1
            assert registry.status()[0].num_waiting == 0

    asyncio.run(main())


def test_a_model_is_listed_with_what_is_known_of_it_before_it_is_loaded():
    async def main():
        opener = FakeOpener(holds=True)
        opener.known = (1_600_000_000, 77)
        async with ModelRegistry(opener) as registry:
            app = app_of(ServerContext(models=registry))
            before = int(time.time())
            registry.register("a", "one", aliases=["b"])

            async def told():
                cards = (await called(app, "GET", "/v1/models")).json()["data"]
                assert [(card["id"], card["root"]) for card in cards] == [("a", "a"), ("b", "a")]
                assert (await called(app, "GET", "/v1/models/a")).json() == cards[0]
                (found,) = {(card["created"], card["max_model_len"]) for card in cards}
                return found

            created, context = await told()
            assert before <= created <= time.time() and context is None
            loading = asyncio.create_task(registry.load("a"))
            await until(lambda: opener.held)
            assert registry.status()[0].state == "loading" and await told() == opener.known
            opener.held[0].go.set_result(None)
            await loading
            assert await told() == (FACTS.created, FACTS.max_model_len)
            await registry.unload("a")
            assert await told() == opener.known

    asyncio.run(main())


def test_what_is_told_of_an_artifact_before_it_is_open_is_what_its_facts_say(fake_artifact):
    for settings in (ModelSettings(), ModelSettings(context=16)):
        need = need_of(str(fake_artifact), settings)
        model = open_model(str(fake_artifact), settings)
        try:
            facts = facts_of(model, settings)
        finally:
            model.close()
        assert (need.created, need.max_model_len) == (facts.created, facts.max_model_len)


def test_a_timeout_of_the_registry_is_not_told_as_a_load():
    class Late(FakeModels):
        @asynccontextmanager
        async def lease(self, name):
            raise TimeoutError("its own")
            yield

    async def main():
        async with ServerContext(models=Late()).lease("a"):
            pytest.fail("it is there")

    with pytest.raises(TimeoutError, match="its own"):
        asyncio.run(main())


def test_a_budget_leaves_keys_and_values_room_for_one_sequence_at_least(fake_artifact):
    one, all_ = (need_of(str(fake_artifact), ModelSettings(seats=n)).settings for n in (1, None))
    short, ample = (need_of(str(fake_artifact), ModelSettings(), n).settings for n in (1, 1 << 40))
    assert (short.kv_bytes, ample.kv_bytes) == (one.kv_bytes, all_.kv_bytes)
    assert one.kv_bytes < all_.kv_bytes


@pytest.mark.parametrize(
    ("queue", "request_", "found"), [(60.0, 600.0, 60.0), (0.0, 600.0, 600.0), (0.0, 0.0, None)]
)
def test_the_wait_for_a_load_has_the_limits_of_requests(queue, request_, found):
    assert ClientLimits(queue_timeout=queue, request_timeout=request_).load_seconds == found
