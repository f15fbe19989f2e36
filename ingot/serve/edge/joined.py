"""`JoinedTransport`: what is written in one turn of the event loop, sent as one."""

from __future__ import annotations

import asyncio
from typing import Any


class JoinedTransport:
    """Stands before a transport, so that the head of an answer goes out with what follows it.

    Each piece that is sent alone wakes its reader once more.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self._send)
        self._parts.append(data)

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self._parts)) + self._transport.get_write_buffer_size()

    def write_eof(self) -> None:
        self._send()
        self._transport.write_eof()

    def close(self) -> None:
        self._send()
        self._transport.close()

    def abort(self) -> None:
        self._parts.clear()
        self._transport.abort()

    def _send(self) -> None:
        data = b"".join(self._parts)
        self._parts.clear()
        if data and not self._transport.is_closing():  # it may have been lost meanwhile
            self._transport.write(data)
