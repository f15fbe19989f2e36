"""Calls an ASGI application without a server, message by message."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Call:
    """A request under way: what the application has sent so far. `leave` closes the connection."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    bodies: list[bytes] = field(default_factory=list)
    complete: bool = False
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def body(self) -> bytes:
        return b"".join(self.bodies)

    def json(self) -> Any:
        return json.loads(self.body)

    def leave(self) -> None:
        self.gone.set()

    async def until(self, data: bytes) -> None:
        """Waits until the application has sent these bytes."""
        while data not in self.body:
            assert not self.complete, f"it ended with {self.body!r}"
            self.news.clear()
            await self.news.wait()

    async def send(self, message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            assert not self.status, "a second start"
            self.status = message["status"]
            pairs = message.get("headers", [])
            self.headers = {name.decode(): value.decode() for name, value in pairs}
        else:
            assert self.status and not self.complete, "a body before the start or after the end"
            if message.get("body"):
                self.bodies.append(message["body"])
            self.complete = not message.get("more_body", False)
        self.news.set()


@asynccontextmanager
async def calling(
    app: Any, method: str, path: str, body: bytes = b"", query: str = "", **state: Any
) -> AsyncIterator[Call]:
    """A request that runs beside the block; leaving the block waits for its end."""
    call, read = Call(), False

    async def receive() -> dict[str, Any]:
        nonlocal read
        if not read:
            read = True
            return {"type": "http.request", "body": body, "more_body": False}
        await call.gone.wait()
        return {"type": "http.disconnect"}

    scope = {
        "type": "http", "http_version": "1.1", "method": method, "path": path, "state": state,
        "raw_path": path.encode(), "query_string": query.encode(), "headers": [], "root_path": "",
    }  # fmt: skip
    task = asyncio.create_task(app(scope, receive, call.send))
    try:
        yield call
    except BaseException:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        raise
    await task


async def called(app: Any, method: str, path: str, asked: Any = None, **state: Any) -> Call:
    """The answer to a request; `asked` is JSON, or bytes as they are."""
    body = (
        asked
        if isinstance(asked, bytes)
        else json.dumps(asked).encode()
        if asked is not None
        else b""
    )
    async with calling(app, method, path, body, **state) as call:
        pass
    assert call.complete
    return call
