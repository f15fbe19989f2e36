"""`DrainingServer`: uvicorn's server, which ends in order when it is asked to."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, cast

import uvicorn

from ingot.serve.edge.pages import Pages
from ingot.serve.edge.protocol import BoundedProtocol
from ingot.serve.edge.settings import EdgeSettings

_TICK_SECONDS = 0.1
_CUT_SECONDS = 2.0  # that requests which are cut have to say so
_BACKLOG = 2048
_PART_KEPT = 4  # one in so many of the free files is kept for loading models and starting engines
_RETRY_SECONDS = 0.05
_STOPPING = (signal.SIGTERM, signal.SIGINT)


class DrainingServer(uvicorn.Server):
    """Goes on accepting while it drains, so that new requests are told why they are refused.

    `ready` is called when it accepts, and `begin` at the first signal. `busy` tells whether there
    are requests under way, and `cut` ends those that take too long. A second signal ends all.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        timeout: float,
        *,
        ready: Callable[[], None],
        begin: Callable[[], None],
        busy: Callable[[], bool],
        cut: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._timeout = timeout
        self._ready, self._begin, self._busy, self._cut = ready, begin, busy, cut
        self._deadline: float | None = None
        self._was_cut = False
        self._stopped = asyncio.Event()
        self._accepting: list[asyncio.Task[None]] = []
        self.exit_code = 0

    def stop(self, number: int | None = None) -> None:
        """Begins to drain; the second time, ends at once."""
        now = asyncio.get_running_loop().time()
        self._stopped.set()
        if self._deadline is None:
            self._deadline = now + self._timeout
            self._begin()
        elif number is not None:
            self.exit_code = 128 + number
            self.should_exit = self.force_exit = True

    async def main_loop(self) -> None:
        """Ticks until the end, and at once when it is asked to stop."""
        counter = 0
        while not await self.on_tick(counter):
            counter += 1
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), _TICK_SECONDS)
            self._stopped.clear()

    async def on_tick(self, counter: int) -> bool:
        if await super().on_tick(counter):
            return True
        if self._deadline is None:
            return False
        now = asyncio.get_running_loop().time()
        if not self._was_cut and now >= self._deadline:
            self._was_cut = True
            self._cut()
        return not self._busy() or now >= self._deadline + _CUT_SECONDS

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        for listener in sockets or []:
            self._accepting.append(asyncio.create_task(self._accept(listener)))
        await asyncio.sleep(0)  # in which they begin to listen
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        await super().shutdown(sockets)

    async def _accept(self, listener: socket.socket) -> None:
        make = cast(Callable[..., asyncio.Protocol], self.config.http_protocol_class)
        state = {"server_state": self.server_state, "app_state": self.lifespan.state}
        await accept(listener, partial(make, config=self.config, **state), self.config.ssl)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Takes the signals that ask for an end. They end here, and are not raised again."""
        with on_signals({number: partial(self.stop, number) for number in _STOPPING}):
            yield


@contextmanager
def on_signals(handlers: Mapping[int, Callable[[], None]]) -> Iterator[None]:
    """Has the running loop call functions for signals inside the block.

    Outside the main thread it does nothing: whoever runs the loop there stops it.
    """
    loop, before = asyncio.get_running_loop(), {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) for number in handlers}
    for number in before:
        loop.add_signal_handler(number, handlers[number])
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


def config_of(app: Any, settings: EdgeSettings) -> uvicorn.Config:
    """Configuration of uvicorn for an application."""
    limits = settings.limits
    return uvicorn.Config(
        app,
        http=BoundedProtocol.within(limits, Pages(settings.origins)),
        ws="none",
        lifespan="off",  # nothing has one, and where it is cut off it shows a traceback
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=limits.connection_keep_alive,  # type: ignore[arg-type]
        timeout_graceful_shutdown=1,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )


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
