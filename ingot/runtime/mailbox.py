"""`Mailbox`: items on their way to one reader in an event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Mailbox that hands over all waiting items at once, so that a slow reader catches up.

    With `latest`, an item has all that those before it have, and replaces them. `put` and `get`
    are for the event loop alone, and `post` for any other thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, latest: bool = False) -> None:
        self.loop = loop
        self._items: deque[T] = deque(maxlen=1 if latest else None)
        self._error: Exception | None = None
        self._reader: asyncio.Future[None] | None = None

    def post(self, item: T | Exception) -> None:
        """Has the event loop take an item."""
        call_in(self.loop, self.put, item)

    def put(self, item: T | Exception) -> None:
        """Takes an item, or the error that is raised when all items before it were read."""
        if isinstance(item, Exception):
            self._error = item
        else:
            self._items.append(item)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def get(self) -> list[T]:
        """Waits for what has come since the last call: one item or more. Raises the error."""
        while not self._items:
            if self._error is not None:
                raise self._error
            self._reader = self.loop.create_future()
            await self._reader
        items = [*self._items]
        self._items.clear()
        return items


def call_in(
    loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: Any
) -> None:
    """Has an event loop call a function, from any thread."""
    with suppress(RuntimeError):  # a loop that is closed: nobody waits
        loop.call_soon_threadsafe(function, *arguments)
