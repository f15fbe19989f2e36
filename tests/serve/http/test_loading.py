"""Requests for a model that takes long to load."""

from __future__ import annotations

import asyncio

import pytest

from ingot.serve.edge.settings import ClientLimits
from ingot.serve.http.app import app_of
from ingot.serve.registry.registry import ModelRegistry
from ingot.serve.requests.context import HttpSettings, ServerContext
from tests.serve.registry.fakes import FakeOpener, answer
from tests.support.asgi import called
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


@pytest.mark.parametrize(
    ("queue", "request_", "found"), [(60.0, 600.0, 60.0), (0.0, 600.0, 600.0), (0.0, 0.0, None)]
)
def test_the_wait_for_a_load_has_the_limits_of_requests(queue, request_, found):
    assert ClientLimits(queue_timeout=queue, request_timeout=request_).load_seconds == found
