"""Waiting for what has no event of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(holds: Callable[[], object]) -> None:
    """Lets the other tasks of this event loop go on until something holds."""
    while not holds():
        await asyncio.sleep(0)
