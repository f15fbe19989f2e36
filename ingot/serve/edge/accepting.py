"""`accept`: takes in clients while there are files for them. The others wait in the backlog."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress

_BACKLOG = 2048
_PART_KEPT = 4  # one in so many of the free files is kept for loading models and starting engines
_RETRY_SECONDS = 0.05


async def accept(
    listener: socket.socket, protocol: Callable[[], asyncio.Protocol], tls: ssl.SSLContext | None
) -> None:
    """Listens, and gives each connection a protocol, until it is cancelled.

    An event loop's own servers do not serve here: where files run out, that of uvloop accepts all
    who wait and hangs up on them.
    """
    loop = asyncio.get_running_loop()
    listener.setblocking(False)
    listener.listen(_BACKLOG)
    first = _lowest_free(listener)
    limit = _most_files()
    most = limit - (limit - first) // _PART_KEPT
    begun: set[asyncio.Task[None]] = set()  # a loop holds its tasks weakly
    while True:
        if _lowest_free(listener) >= most:
            await asyncio.sleep(_RETRY_SECONDS)
            continue
        try:
            connection, _ = await loop.sock_accept(listener)
        except OSError:  # the client has gone, or the whole machine has no file left
            await asyncio.sleep(_RETRY_SECONDS)
            continue
        task = loop.create_task(_connect(connection, protocol, tls))
        begun.add(task)
        task.add_done_callback(begun.discard)


async def _connect(
    connection: socket.socket, protocol: Callable[[], asyncio.Protocol], tls: ssl.SSLContext | None
) -> None:
    loop = asyncio.get_running_loop()
    with suppress(OSError):  # a handshake that the client broke off
        await loop.connect_accepted_socket(protocol, connection, ssl=tls)


def _lowest_free(open_file: socket.socket) -> int:
    """The number that the next file to be opened would get; that of the limit if none would."""
    try:
        number = os.dup(open_file.fileno())
    except OSError:
        return _most_files()
    os.close(number)
    return number


def _most_files() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1 << 20
