"""`DrainingServer`: uvicorn's server, which ends in order when it is asked to."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import uvicorn

from ingot.serve.edge.protocol import BoundedProtocol
from ingot.serve.edge.settings import EdgeSettings

_CUT_SECONDS = 2.0  # that requests which are cut have to say so
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
        self.exit_code = 0

    def stop(self, number: int | None = None) -> None:
        """Begins to drain; the second time, ends at once."""
        now = asyncio.get_running_loop().time()
        if self._deadline is None:
            self._deadline = now + self._timeout
            self._begin()
        elif number is not None:
            self.exit_code = 128 + number
            self.should_exit = self.force_exit = True

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
        await super().startup(sockets)
        if self.started:
            self._ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Takes the signals that ask for an end. They end here, and are not raised again."""
        loop, ours = asyncio.get_running_loop(), []
        with suppress(ValueError, RuntimeError):  # not the main thread: whoever runs us stops us
            for number in _STOPPING:
                loop.add_signal_handler(number, self.stop, number)
                ours.append(number)
        try:
            yield
        finally:
            for number in ours:
                loop.remove_signal_handler(number)


def config_of(app: Any, settings: EdgeSettings) -> uvicorn.Config:
    """How uvicorn is to serve an application."""
    limits = settings.limits
    return uvicorn.Config(
        app,
        http=BoundedProtocol.within(limits),
        ws="none",
        lifespan="auto",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=2048,
        timeout_keep_alive=limits.connection_keep_alive,  # type: ignore[arg-type]
        timeout_graceful_shutdown=1,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )
