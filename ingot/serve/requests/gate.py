"""Gate between a request and the engine: admission before it, telemetry beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    nullcontext,
)
from dataclasses import dataclass
from typing import Protocol

from ingot.serve.asked import Asked
from ingot.serve.engine import Progress


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that was let in.

    Attributes:
        seat: waits for the seats of its next job, which are the block's.
        see: takes in what a step did for a job of it, by the job's number.
    """

    seat: Callable[[], AbstractAsyncContextManager[None]]
    see: Callable[[Progress, int], None]


class Gate(Protocol):
    """Lets requests in."""

    def expect(self, asked: Asked) -> AbstractContextManager[None]:
        """Counts a request while its prompt is made in the block, before it enters. Raises
        QueueFullError where it would be refused anyhow; of `asked`, the model and the key count."""
        ...

    def enter(self, asked: Asked) -> AbstractAsyncContextManager[Admitted]:
        """Waits for the request's turn. Raises QueueFullError; a request that takes too long is
        cancelled in the block, which raises why."""
        ...


class OpenGate:
    """Lets everything in and looks at nothing."""

    def expect(self, asked: Asked) -> AbstractContextManager[None]:
        return nullcontext()

    @asynccontextmanager
    async def enter(self, asked: Asked) -> AsyncIterator[Admitted]:
        yield Admitted(nullcontext, lambda progress, job: None)
