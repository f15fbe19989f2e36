"""A server of the real kind around a small application, on a port of its own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import httpx
import msgspec

from ingot.serve.edge.edge import Edge
from ingot.serve.edge.settings import ClientLimits, EdgeSettings
from tests.support import fake_engine

LOCAL = "127.0.0.1"
FACTS = msgspec.structs.replace(fake_engine.FACTS, max_num_seqs=1, num_pages=10, page_size=8)


class SmallApp:
    """Answers `/echo` with the body's length, `/fail` with a fault, `/hold` when told to, `/flood`
    with much text, and `/live` and `/health` with `ok`. `began` is set once one of the others has
    been asked for, and `ended` has the paths of all."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.release = asyncio.Event()
        self.ended: list[str] = []
        self._news = asyncio.Event()

    async def until_ended(self, path: str) -> None:
        """Waits until an answer on a path has ended."""
        while path not in self.ended:
            self._news.clear()
            await self._news.wait()

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] == "lifespan":
            while True:
                kind = (await receive())["type"]
                await send({"type": f"{kind}.complete"})
                if kind == "lifespan.shutdown":
                    return
        answer = getattr(self, scope["path"].strip("/").replace("/", "_"), self.missing)
        try:
            await answer(scope, receive, send)
        finally:
            self.ended.append(scope["path"])
            self._news.set()

    async def live(self, scope, receive, send) -> None:
        await _text(send, b"ok")

    health = v2_health_live = v2_health_ready = live

    async def models_load(self, scope, receive, send) -> None:
        await _text(send, scope["state"]["key"].encode())

    async def echo(self, scope, receive, send) -> None:
        self.began.set()
        count, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            count += len(message["body"])
            more = message["more_body"]
        await _text(send, b"%d" % count)

    async def fail(self, scope, receive, send) -> None:
        raise RuntimeError(f"secret at {__file__}")

    async def half(self, scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise RuntimeError("in the middle")

    async def hold(self, scope, receive, send) -> None:
        self.began.set()
        await self.release.wait()
        await _text(send, b"held")

    async def flood(self, scope, receive, send) -> None:
        self.began.set()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(1_000):
            part = {"type": "http.response.body", "body": b"x" * 65_536, "more_body": True}
            await send(part)
        await send({"type": "http.response.body", "body": b""})

    async def missing(self, scope, receive, send) -> None:
        await _text(send, b"no such path", status=404)


async def _text(send, body: bytes, status: int = 200) -> None:
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [length]})
    await send({"type": "http.response.body", "body": body})


class Served:
    """A server that runs: the edge, the application inside, and where it listens."""

    def __init__(self, edge: Edge, app: Any, task: asyncio.Task[int]) -> None:
        self.edge, self.app, self.task = edge, app, task
        self.port = int(edge.address.rsplit(":", 1)[1])

    async def raw(self, data: bytes, *, ends: bool = False) -> bytes:
        """What the server sends for bytes, until it ends the connection.

        With `ends` the client says that nothing more comes.
        """
        sock = socket.create_connection((LOCAL, self.port))
        sock.setblocking(False)
        # At once, or the server may have waited too long before a busy machine comes to it.
        sent = sock.send(data)
        reader, writer = await asyncio.open_connection(sock=sock)
        writer.write(data[sent:])
        with contextlib.suppress(ConnectionError):
            await writer.drain()
            if ends:
                writer.write_eof()
        answer = await read_all(reader)
        writer.close()
        return answer

    def client(self, **options) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.edge.address, trust_env=False, **options)

    def metric(self, name: str, **labels: str) -> float | None:
        """The value of a metric, as it is exposed."""
        from prometheus_client.parser import text_string_to_metric_families

        text = self.edge.telemetry.board.exposition()[0].decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    return sample.value
        return None


async def read_all(reader: asyncio.StreamReader) -> bytes:
    """Everything until the end of the connection, however it ends."""
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := await reader.read(65_536):
            parts.append(part)
    return b"".join(parts)


@contextlib.asynccontextmanager
async def serving(
    limits: ClientLimits | None = None,
    app: Any = None,
    build: Callable[[Edge], Any] | None = None,
    **settings: Any,
) -> AsyncIterator[Served]:
    """Runs a server inside the block, and ends it in order behind it.

    It is around `app`, or what `build` makes of the edge, or else a small application.
    """
    edge = Edge(EdgeSettings(limits=limits or ClientLimits(), port=0, **settings))
    inner = build(edge) if build else app or SmallApp()
    listening = asyncio.Event()
    task = asyncio.ensure_future(edge.serve(edge.wrap(inner), listening.set))
    waiting = asyncio.ensure_future(listening.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        waiting.cancel()
        task.result()
    try:
        yield Served(edge, inner, task)
    finally:
        if isinstance(inner, SmallApp):
            inner.release.set()
        edge.stop()
        await task


def status_of(answer: bytes) -> int:
    """The status of an answer as it came over the wire."""
    return int(answer.split(b" ", 2)[1])


def error_of(answer: bytes) -> dict[str, object]:
    """The error in the body of an answer as it came over the wire."""
    return msgspec.json.decode(answer.partition(b"\r\n\r\n")[2])["error"]


def with_limits(**changes) -> ClientLimits:
    """The usual limits, but for some."""
    return replace(ClientLimits(), **changes)
