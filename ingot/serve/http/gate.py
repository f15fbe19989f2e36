"""What stands between a request and the engine: admission before it, telemetry beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from msgspec import Struct

from ingot.serve.engine import ModelFacts, Progress


class Asked(Struct, frozen=True, kw_only=True):
    """What a request will take of the engine.

    `num_tokens` are the most that it can hold: prompts, and all that its completions may become.
    """

    request_id: str
    model: str
    key: str = ""
    num_sequences: int = 1
    num_tokens: int = 0
    num_prompt_tokens: int = 0
    max_tokens: int | None = None
    priority: int = 0
    stream: bool = False
    facts: ModelFacts | None = None


class Watch(Protocol):
    """Sees how a request goes on."""

    def see(self, progress: Progress) -> None:
        """Takes in what a step did for the request."""
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

    def see(self, progress: Progress) -> None:
        pass
