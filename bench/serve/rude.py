"""Clients that ask for what cannot be, and clients that leave in the middle of their answers."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from contextlib import closing

from bench.serve.sides import asks
from ingot.cli.load.http import Connection, request_bytes
from ingot.cli.load.server import Server, one

LONG = 384  # tokens that leaving clients ask for
# Each is refused with 400.
BAD = (
    {"prompt": "x", "max_tokens": -1},
    {"prompt": [5] * 100_000},
    {"prompt": "x", "temperature": "hot"},
    {"prompt": {"text": "x"}},
    {"prompt": "x", "structured_outputs": {"regex": "("}},
)


async def ask_badly(server: Server, number: int) -> bool:
    """Asks for one of BAD, or sends half of its body; whether that was not refused."""
    body = json.dumps({"model": server.model, **BAD[number % len(BAD)]}).encode()
    if number % 7 == 0:
        body = body[: len(body) // 2]
    request = request_bytes(server.address, "POST", "/v1/completions", {}, body)
    with closing(Connection(server.address)) as connection:
        try:
            return (await connection.ask(request, lambda part: None)).status != 400
        except OSError:
            return True


async def leave(server: Server, number: int) -> bool:
    """Asks for a long answer, and leaves when some pieces of it have come, or none."""
    enough = random.Random(number).randrange(12)
    (ask,) = asks(10_000 + number, 1, LONG)
    left = asyncio.Event()
    connection = _Leaving(server, enough, left)
    task = asyncio.create_task(one(server, connection, ask))
    await left.wait()
    task.cancel()
    await asyncio.wait([task])
    connection.close()
    return False


async def now_and_then(
    do: Callable[[int], Awaitable[bool]], pause: float, until: float
) -> tuple[int, int]:
    """Does something after each pause; how often, and how often it said true."""
    loop = asyncio.get_running_loop()
    count = wrong = 0
    while loop.time() < until:
        wrong += await do(count)
        count += 1
        await asyncio.sleep(pause)
    return count, wrong


class _Leaving(Connection):
    """Says when so many pieces of an answer have come; at 0, when the request was sent."""

    def __init__(self, server: Server, enough: int, left: asyncio.Event) -> None:
        super().__init__(server.address)
        self._left_pieces = enough
        self._left = left

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self._left_pieces:
            asyncio.get_running_loop().call_soon(self._left.set)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._left_pieces -= 1
        if self._left_pieces <= 0:
            self._left.set()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._left.set()  # the answer may be shorter
