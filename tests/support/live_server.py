"""A server of this process, on a port of its own, in a thread with an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn


class _Server(uvicorn.Server):
    """Says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = threading.Event()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.listens.set()


@contextmanager
def serving(make_app: Callable[[], Any]) -> Iterator[str]:
    """The address of a server; `make_app` is called in its event loop."""
    servers: list[_Server] = []
    begun = threading.Event()

    async def main() -> None:
        config = uvicorn.Config(
            make_app(), port=0, http="httptools", log_config=None, lifespan="off"
        )
        servers.append(_Server(config))
        begun.set()
        await servers[0].serve()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        begun.wait()
        servers[0].listens.wait()
        port = servers[0].servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        servers[0].should_exit = True
        thread.join()
