"""`MemoryBudget`: what loaded models may take together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ingot.errors import ResourceError


class MemoryBudget:
    """Counts the bytes of models against a budget; None is no bound. For one event loop."""

    def __init__(self, budget: int | None) -> None:
        self.budget = budget
        self.used = 0
        self._turn = asyncio.Lock()
        self._stirred = asyncio.Event()

    def fits(self, nbytes: int) -> bool:
        """Returns whether so much is free now."""
        return self.budget is None or self.used + nbytes <= self.budget

    async def take(self, nbytes: int, evict: Callable[[], asyncio.Task[None] | None]) -> None:
        """Takes bytes as soon as they are free; who asked first gets them first.

        `evict` frees some, or returns None while nothing can be freed; it is asked again when
        `stir` is called. Raises ResourceError for more than the budget, and what `evict` raises.
        """
        if self.budget is not None and nbytes > self.budget:
            raise ResourceError(
                f"the model takes {nbytes} bytes, the memory budget is {self.budget}",
                hint="Give it fewer seats, less context or fewer kv_bytes, or raise the budget.",
            )
        async with self._turn:  # first in, first out, so small models do not starve a large one
            while not self.fits(nbytes):
                self._stirred.clear()
                freeing = evict()
                if freeing is None:
                    await self._stirred.wait()
                else:  # it goes on where this wait is cancelled
                    await asyncio.wait([freeing])
            self.used += nbytes

    def free(self, nbytes: int) -> None:
        """Gives bytes back."""
        self.used -= nbytes
        self.stir()

    def stir(self) -> None:
        """Says that something may be evicted now that could not be before."""
        self._stirred.set()
