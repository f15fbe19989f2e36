"""`Events`: what happens to models, for those who watch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from ingot.serve.registry.entries import ModelEvent

MOST = 1024  # that wait for one watcher; the oldest are dropped


class Events:
    """Hands events to all who watch. For one event loop."""

    def __init__(self) -> None:
        self._watchers: set[asyncio.Queue[ModelEvent | None]] = set()

    def tell(self, name: str, state: str, text: str = "", **more: Any) -> None:
        """Tells that something happened now; `more` are further fields of the event."""
        self._put(ModelEvent(name, state, text, time.time(), **more))

    def close(self) -> None:
        """Ends the iterators of all who watch."""
        self._put(None)

    async def watch(self) -> AsyncIterator[ModelEvent]:
        """Events from now on."""
        queue: asyncio.Queue[ModelEvent | None] = asyncio.Queue(MOST)
        self._watchers.add(queue)
        try:
            while (event := await queue.get()) is not None:
                yield event
        finally:
            self._watchers.discard(queue)

    def _put(self, event: ModelEvent | None) -> None:
        for queue in self._watchers:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(event)
