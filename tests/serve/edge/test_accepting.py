"""Clients are accepted while there are files for them, and a part of the files is kept."""

from __future__ import annotations

import asyncio
import gc
import socket

import pytest

from ingot.serve.edge import server

FREE = 40  # files before the limit


class Kept(asyncio.Protocol):
    """Keeps its connection open."""

    def __init__(self, connections: list[asyncio.Transport]) -> None:
        self._connections = connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._connections.append(transport)


def test_a_quarter_of_the_free_files_is_kept_and_others_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "_RETRY_SECONDS", 0.001)

    gc.collect()  # what holds files of other tests would free them meanwhile
    lowest_free, seen = server._lowest_free, [0]

    def noted(listener: socket.socket) -> int:
        seen.append(lowest_free(listener))
        return seen[-1]

    async def connect() -> tuple[int, int]:
        connections: list[asyncio.Transport] = []
        with socket.create_server(("127.0.0.1", 0)) as listener:
            clients = [socket.create_connection(listener.getsockname()) for _ in range(FREE)]
            first = lowest_free(listener)
            monkeypatch.setattr(server, "_most_files", lambda: first + FREE)
            monkeypatch.setattr(server, "_lowest_free", noted)
            task = asyncio.create_task(server.accept(listener, lambda: Kept(connections), None))
            while (
                len(seen) < 3 or seen[-1] != seen[-2]
            ):  # it looks again and again, and accepts nobody
                await asyncio.sleep(0)
            full = len(connections)
            connections[0].close()
            while len(connections) == full:
                await asyncio.sleep(0)
            task.cancel()
            for each in (*clients, *connections):
                each.close()
            return full, len(connections)

    full, then = asyncio.run(asyncio.wait_for(connect(), 20))
    assert (full, then) == (FREE * 3 // 4, FREE * 3 // 4 + 1)
