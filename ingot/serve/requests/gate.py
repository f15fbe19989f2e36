"""What stands between a request and the engine: admission before it, telemetry beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Protocol

from ingot.serve.asked import Asked
from ingot.serve.engine import Progress


class Watch(Protocol):
    """Sees how a request goes on, and seats its jobs."""

    def seat(self) -> AbstractAsyncContextManager[None]:
        """Waits for the seats of the request's next job, which are the block's."""
        ...

    def see(self, progress: Progress, job: int = 0) -> None:
        """Takes in what a step did for a job of the request, by its number."""
        ...


class Gate(Protocol):
    """Lets requests in."""

    def enter(self, asked: Asked) -> AbstractAsyncContextManager[Watch]:
        """Waits for the request's turn. Raises QueueFullError; a request that takes too long is
        cancelled in the block, which raises why."""
        ...


class OpenGate:
    """Lets everything in and looks at nothing."""

    @asynccontextmanager
    async def enter(self, asked: Asked) -> AsyncIterator[Watch]:
        yield self

    def seat(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    def see(self, progress: Progress, job: int = 0) -> None:
        pass
