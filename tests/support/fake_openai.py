"""A server of OpenAI's API that streams what a test tells it to, and notes what it was asked."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

USAGE = {"prompt_tokens": 7, "completion_tokens": 3}


def event(value: Any) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def completion(*texts: str, usage: dict[str, int] | None = USAGE) -> list[bytes]:
    """The events of a completion, as separate writes."""
    events = [event({"choices": [{"index": 0, "text": text}], "usage": None}) for text in texts]
    ends = [event({"choices": [], "usage": usage})] if usage else []
    return [b": ping\n\n", *events, *ends, event(b"[DONE]")]


def conversation(*texts: str) -> list[bytes]:
    """The events of an answer of a conversation: the role first, then text, then the reason."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": text} for text in texts]
    events = [event({"choices": [{"index": 0, "delta": delta}]}) for delta in deltas]
    last = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    return [*events, last, event({"choices": [], "usage": USAGE}), event(b"[DONE]")]


@dataclass
class Fake:
    """What the server answers, and what it saw.

    `answers` are taken in turn; each is the writes of a body, or a pair of a status and a JSON
    body. `chunked` frames the writes; otherwise the end of the connection ends the body.
    A connection ends at the request that follows its first `per_connection` answers, where given.
    """

    answers: list[Any] = field(default_factory=lambda: [completion("a", "b", "c")])
    models: list[str] = field(default_factory=lambda: ["fake"])
    tokens: list[int] | None = field(default_factory=lambda: [3, 5, 8, 13])
    chunked: bool = True
    per_connection: int | None = None
    asked: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    num_connections: int = 0
    running: int = 0
    most_running: int = 0
    url: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        num_answers = 0
        try:
            while await self._exchange(reader, writer, last=num_answers == self.per_connection):
                num_answers += 1
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, last: bool
    ) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        path = head[0].split(" ")[1]
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if last:
            return False
        if path == "/v1/models":
            return self._say(writer, 200, {"data": [{"id": name} for name in self.models]})
        if path == "/tokenize":
            if self.tokens is None:
                return self._say(writer, 404, {"error": {"message": "no such route"}})
            return self._say(writer, 200, {"tokens": self.tokens})
        self.headers.append(headers)
        self.asked.append({"path": path, **json.loads(body)})
        answer = self.answers[(len(self.asked) - 1) % len(self.answers)]
        if isinstance(answer, tuple):
            return self._say(writer, *answer)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            return await self._stream(writer, answer)
        finally:
            self.running -= 1

    def _say(self, writer: asyncio.StreamWriter, status: int, value: Any) -> bool:
        body = json.dumps(value).encode()
        head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        return True

    async def _stream(self, writer: asyncio.StreamWriter, writes: list[bytes]) -> bool:
        framing = "Transfer-Encoding: chunked" if self.chunked else "Connection: close"
        writer.write(f"HTTP/1.1 200 OK\r\n{framing}\r\n\r\n".encode())
        for data in writes:
            if data == b"":  # breaks off
                return False
            writer.write(b"%x\r\n%s\r\n" % (len(data), data) if self.chunked else data)
            await writer.drain()
        if self.chunked:
            writer.write(b"0\r\n\r\n")
        return self.chunked


@contextmanager
def serve_fake(fake: Fake) -> Iterator[Fake]:
    """Serves in a thread of its own; `fake.url` is where."""
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(fake.serve, "127.0.0.1", 0))
    fake.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield fake
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        loop.run_until_complete(_ended(loop))
        loop.close()


async def _ended(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop) - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
