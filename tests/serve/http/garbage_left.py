"""Print what requests leave for Python's search for garbage, as JSON.

This is a process of its own: in one that runs other tests, their threads leave garbage meanwhile.
"""

from __future__ import annotations

import asyncio
import gc
import json
from typing import Any

from ingot.serve.edge.edge import Edge
from ingot.serve.http.app import build_app
from tests.support.asgi import called
from tests.support.fake_engine import FakeEngine, FakeModels, says

ASKED = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Speak!"}]},
    "/v1/completions": {"prompt": "Speak!"},
}
FIELDS: dict[str, tuple[int, dict[str, Any]]] = {
    "whole": (200, {}),
    "stream": (200, {"stream": True}),
    "wrong": (400, {"temperature": -1}),
    "unknown": (404, {"model": "no such"}),
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


def garbage(path: str, status: int, fields: dict[str, Any]) -> list[object]:
    edge = Edge()
    app = edge.wrap(build_app(FakeModels(bard=FakeEngine(says("To be", "."))), gate=edge))
    return asyncio.run(left_by(app, path, {"model": "bard", **ASKED[path], **fields}, status))


async def leaky(scope: Any, receive: Any, send: Any) -> None:
    cycle: list[object] = []
    cycle.append(cycle)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def main() -> None:
    left = {
        f"{path} {name}": [repr(each) for each in garbage(path, *asked)]
        for path in ASKED
        for name, asked in FIELDS.items()
    }
    left["a cycle a request"] = [repr(each) for each in asyncio.run(left_by(leaky, "/", {}, 200))]
    print(json.dumps(left))


if __name__ == "__main__":
    main()
