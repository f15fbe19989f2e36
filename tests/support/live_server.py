"""A server of this process, on a port of its own, in a thread with an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import uvicorn


class _Server(uvicorn.Server):
    """Says when it listens."""

    def __init__(self, config: uvicorn.Config, listening: Future[_Server]) -> None:
        super().__init__(config)
        self._listening = listening

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self._listening.set_result(self)


@contextmanager
def serving(make_app: Callable[[], Any]) -> Iterator[str]:
    """The address of a server; `make_app` is called in its event loop. Raises what it raises."""
    listening: Future[_Server] = Future()

    async def main() -> None:
        config = uvicorn.Config(
            make_app(), port=0, http="httptools", log_config=None, lifespan="off"
        )
        await _Server(config, listening).serve()

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            if listening.done():
                raise
            listening.set_exception(error)

    thread = threading.Thread(target=run)
    thread.start()
    server = listening.result()
    try:
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()
