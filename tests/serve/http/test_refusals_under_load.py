"""What is refused under load waits for nothing: no seat, no prompt of another, and no body."""

from __future__ import annotations

import asyncio
import threading

import pytest

from ingot.serve.edge.edge import Edge
from ingot.serve.edge.settings import ClientLimits, EdgeSettings
from ingot.serve.http.app import build_app
from ingot.serve.requests import answering, context
from tests.support.asgi import called
from tests.support.fake_engine import FACTS, FakeEngine, FakeModels, says
from tests.support.until import until

TEXT = "/v1/completions"
SEATS = FACTS.max_num_seqs + max(FACTS.max_num_seqs // 4, 2)
CLIENTS = 500
SMALL = {"prompt": "Hi"}
MIDDLE = {"prompt": "Hi", "pad": "x" * context.SMALL_BODY}
LARGE = {"prompt": "Hi", "pad": "x" * context.LARGE_BODY}


@pytest.fixture
def unmade(monkeypatch):
    """Prompts of bodies that are not small are made when this is set."""
    go, make = threading.Event(), answering.order_of

    def waits(request, engine, caller, body, terms):
        if len(body) > context.SMALL_BODY:
            assert go.wait(60)
        return make(request, engine, caller, body, terms)

    monkeypatch.setattr(answering, "order_of", waits)
    yield go
    go.set()


@pytest.mark.parametrize("asked", [SMALL, MIDDLE, LARGE], ids=["small", "middle", "large"])
def test_a_full_line_refuses_while_all_prompts_are_being_made(unmade, asked) -> None:
    """All that may come are there, no prompt is made, and every thread for prompts is taken."""

    async def main() -> None:
        limits = ClientLimits(max_queue=CLIENTS, max_queue_tokens=0)
        edge = Edge(EdgeSettings(limits=limits))
        engine = FakeEngine(says("a"))
        app = build_app(FakeModels(bard=engine), gate=edge)
        waiting = [
            asyncio.create_task(called(app, "POST", TEXT, MIDDLE)) for _ in range(CLIENTS + SEATS)
        ]
        await until(lambda: "bard" in edge.admission.lines)
        line = edge.admission.lines["bard"]
        await until(lambda: line.num_expected == CLIENTS + SEATS)
        refused = await called(app, "POST", TEXT, asked)
        assert (refused.status, refused.json()["error"]["code"]) == (429, "queue_full")
        assert refused.headers["retry-after"] and engine.jobs == []
        for path, status in (("/health", 200), ("/nothing", 404), ("/v1/models/none", 404)):
            assert (await called(app, "GET", path)).status == status
        bad = await called(app, "POST", TEXT, {"prompt": "Hi", "n": 0})
        assert bad.status == 400
        unmade.set()
        assert {each.status for each in await asyncio.gather(*waiting)} == {200}
        assert (await called(app, "POST", TEXT, asked)).status == 200
        assert line.num_expected == 0

    asyncio.run(main())


def test_a_full_line_refuses_while_all_wait_for_seats() -> None:
    async def main() -> None:
        edge = Edge(EdgeSettings(limits=ClientLimits(max_queue=CLIENTS, max_queue_tokens=0)))
        go = asyncio.Event()
        engine = FakeEngine(lambda job: [go, *says("a")(job)])
        app = build_app(FakeModels(bard=engine), gate=edge)
        waiting = [
            asyncio.create_task(called(app, "POST", TEXT, SMALL)) for _ in range(CLIENTS + SEATS)
        ]
        await until(lambda: "bard" in edge.admission.lines)
        line = edge.admission.lines["bard"]
        await until(lambda: line.num_waiting == CLIENTS)
        for asked in (SMALL, MIDDLE, LARGE):
            refused = await called(app, "POST", TEXT, asked)
            assert (refused.status, refused.json()["error"]["code"]) == (429, "queue_full")
        go.set()
        assert {each.status for each in await asyncio.gather(*waiting)} == {200}

    asyncio.run(main())
