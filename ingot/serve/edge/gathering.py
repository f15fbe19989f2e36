"""`Gathering`: writes of one turn of the event loop as one.

A write is a system call that wakes its reader, who then may take the processor from the server. So
the head of an answer goes out with its first piece, and the pieces of a step go out when all of
them have been made.
"""

from __future__ import annotations

import asyncio
from typing import Any

MOST_BYTES = 1 << 16  # that are kept for the end of the turn


class Gathering:
    """A transport that passes on what was written at the end of the turn. It knows all that the
    transport does."""

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []
        self._num_bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Keeps the data until the end of the turn, or until there is much of it."""
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(data)
        self._num_bytes += len(data)
        if self._num_bytes > MOST_BYTES:
            self.flush()

    def flush(self) -> None:
        """Passes on what was kept, unless the connection is cut."""
        data = b"".join(self._parts)
        self._parts.clear()
        self._num_bytes = 0
        if data and not self._transport.is_closing():
            self._transport.write(data)

    def get_write_buffer_size(self) -> int:
        """Bytes that are kept here or in the transport."""
        return self._num_bytes + int(self._transport.get_write_buffer_size())

    def write_eof(self) -> None:
        """Ends what is written, after what was kept."""
        self.flush()
        self._transport.write_eof()

    def close(self) -> None:
        """Closes the connection when all is written, what was kept included."""
        self.flush()
        self._transport.close()
