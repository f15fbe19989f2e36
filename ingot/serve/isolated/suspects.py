"""`Suspects`: which requests may have killed engines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from ingot.errors import PoisonedRequestError

MOST = 1024  # that are remembered
FORGET_SECONDS = 600.0


@dataclass(slots=True)
class _Entry:
    deaths: int
    when: float


class Suspects:
    """Tells a request that kills engines from those that only ran beside it.

    All jobs of an engine that died are suspects. A suspect that is sent again runs while no other
    suspect does. If the engine dies again, it is guilty and refused from then on; if it ends, it
    is free. What is not sent again is forgotten after a while.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._entries: dict[bytes, _Entry] = {}
        self._trial = asyncio.Lock()

    @asynccontextmanager
    async def admitted(self, fingerprint: bytes) -> AsyncIterator[None]:
        """Admits a job to run inside the block. Raises PoisonedRequestError for a guilty one."""
        if not self._is_suspect(fingerprint):
            yield
            return
        async with self._trial:  # one suspect at a time, so that a death tells which is guilty
            # It may have been found guilty or free meanwhile.
            if self._is_suspect(fingerprint):
                yield
                return
        yield

    def blame(self, fingerprints: Iterable[bytes]) -> None:
        """An engine died while it had these jobs."""
        for fingerprint in fingerprints:
            before = self._entries.pop(fingerprint, None)
            deaths = before.deaths + 1 if before else 1
            self._entries[fingerprint] = _Entry(deaths, self._now())
        while len(self._entries) > MOST:
            del self._entries[next(iter(self._entries))]

    def acquit(self, fingerprint: bytes) -> None:
        """A job came to its end."""
        self._entries.pop(fingerprint, None)

    def _is_suspect(self, fingerprint: bytes) -> bool:
        entry = self._entries.get(fingerprint)
        if entry is None:
            return False
        if self._now() - entry.when > FORGET_SECONDS:
            del self._entries[fingerprint]
            return False
        if entry.deaths > 1:
            raise PoisonedRequestError(
                "the engine died twice while it ran this request",
                hint="It is refused for some minutes. Change it, or report it as a fault of ingot.",
            )
        return True
