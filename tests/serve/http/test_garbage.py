"""Requests leave nothing behind that only Python's search for garbage would find: that is rare."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from ingot.serve.edge.edge import Edge
from ingot.serve.http.app import build_app
from tests.support.asgi import called
from tests.support.fake_engine import FakeEngine, FakeModels, says

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ASKED = {
    CHAT: {"messages": [{"role": "user", "content": "Speak!"}]},
    TEXT: {"prompt": "Speak!"},
}
TIMES = 10


async def left_by(app: Any, path: str, body: dict[str, Any], status: int) -> list[object]:
    """What `TIMES` requests leave for the search."""
    for _ in range(2):
        assert (await called(app, "POST", path, body)).status == status
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(TIMES):
            await called(app, "POST", path, body)
        gc.collect()
        return [*gc.garbage]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def garbage(path: str, status: int = 200, **fields: Any) -> list[object]:
    edge = Edge()
    app = edge.wrap(build_app(FakeModels(bard=FakeEngine(says("To be", "."))), gate=edge))
    return asyncio.run(left_by(app, path, {"model": "bard", **ASKED[path], **fields}, status))


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_leaves_no_garbage(path: str, stream: bool) -> None:
    assert garbage(path, stream=stream) == []


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_a_refusal_leaves_no_garbage(path: str) -> None:
    assert garbage(path, status=400, temperature=-1) == []
    assert garbage(path, status=404, model="no such") == []


def test_a_cycle_is_garbage() -> None:
    class Leaky:
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            cycle: list[object] = []
            cycle.append(cycle)
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    assert len(asyncio.run(left_by(Leaky(), TEXT, {}, 200))) == TIMES
