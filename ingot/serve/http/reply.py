"""Answers on their way to a client: whole, or as a stream of server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

from ingot.serve.edge.record import cuttable
from ingot.serve.openai.events import DONE, PING
from ingot.serve.refusal import Refusal, send_refusal
from ingot.serve.requests.errors import noted_refusal

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

JSON = (b"content-type", b"application/json")
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies pass on what they get, at once
]


class ClientGone(Exception):
    """The client has closed the connection. Nobody is there to be told."""


class Reply:
    """Response to one client."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.begun = False
        self.complete = False
        self._num_writes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._ping: asyncio.Task[None] | None = None

    async def whole(self, body: bytes, status: int = 200, *headers: tuple[bytes, bytes]) -> None:
        """Sends an answer that is not streamed."""
        length = (b"content-length", b"%d" % len(body))
        self.begun = self.complete = True
        start = {"type": "http.response.start", "status": status, "headers": [length, *headers]}
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body})

    async def write(self, events: bytes) -> None:
        """Sends events; the first ones begin the stream."""
        self._num_writes += 1
        await self._put(events)

    async def end(self, events: bytes) -> None:
        """Sends the last events."""
        if not self.begun:
            await self._begin()
        self.complete = True
        await self._send({"type": "http.response.body", "body": events})

    async def fail(self, refusal: Refusal) -> None:
        """Tells the client what went wrong: by a status or, in a stream that has begun, by an
        event."""
        if self.complete:
            return
        if self.begun:
            await self.end(b"data: " + refusal.body() + b"\n\n" + DONE)
        else:
            self.begun = self.complete = True
            await send_refusal(self._send, refusal)

    async def _put(self, events: bytes) -> None:
        if not self.begun:
            await self._begin()
        await self._send({"type": "http.response.body", "body": events, "more_body": True})

    async def _begin(self) -> None:
        self.begun = True
        start = {"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS}
        await self._send(start)

    @contextmanager
    def kept_awake(self, seconds: float) -> Iterator[None]:
        """Sends a comment whenever nothing else was sent for so long."""
        self._look_later(seconds)
        try:
            yield
        finally:
            assert self._timer is not None, "a look sets the next one"
            self._timer.cancel()
            self._timer = None
            if self._ping is not None:
                self._ping.cancel()

    def _look_later(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, self._look, seconds, self._num_writes)

    def _look(self, seconds: float, num_writes: int) -> None:
        is_silent = self._num_writes == num_writes and not self.complete
        if is_silent and (self._ping is None or self._ping.done()):
            self._ping = asyncio.get_running_loop().create_task(self._put(PING))
        self._look_later(seconds)


@contextmanager
def while_connected(receive: Receive, reply: Reply) -> Iterator[None]:
    """Cancels the block when the client closes the connection, and raises ClientGone then.

    The request's body must have been read.
    """
    task = asyncio.current_task()
    assert task is not None, "requests are answered in tasks"
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        if not reply.complete:
            gone = True
            task.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if not gone:
            raise
        task.uncancel()
        raise ClientGone from None
    finally:
        watcher.cancel()


async def replying(
    scope: Scope, receive: Receive, send: Send, answer: Callable[[bytes, Reply], Awaitable[None]]
) -> None:
    """Has a request answered, of which `answer` gets the body, while its client is there.

    What that raises is told to the client.
    """
    reply = Reply(send)
    try:
        with cuttable():
            body = await read_body(receive)
            with while_connected(receive, reply):
                await answer(body, reply)
    except ClientGone:
        pass
    except Exception as error:
        await reply.fail(noted_refusal(error, scope))


async def read_body(receive: Receive) -> bytes:
    """The whole body of a request. Raises ClientGone."""
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)
