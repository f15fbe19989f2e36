"""How a registry opens models: in processes of their own, or in this one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from msgspec.structs import replace

from ingot.serve.engine import Engine
from ingot.serve.isolated.client import IsolatedEngine
from ingot.serve.isolated.spawn import Spawn, spawned
from ingot.serve.isolated.supervisor import Changed, Patience
from ingot.serve.isolated.weights_seen import WeightsSeen
from ingot.serve.registry.compiling import artifact_of
from ingot.serve.registry.need import Need, need_of
from ingot.serve.settings import ModelSettings

if TYPE_CHECKING:
    from ingot.serve.local import LocalEngine


class Opener(Protocol):
    """Where engines come from."""

    async def locate(
        self, source: str, settings: ModelSettings, tell: Callable[[str], None]
    ) -> str:
        """The artifact of a source, which may have to be made first; `tell` gets its progress."""
        ...

    async def need(self, path: str, settings: ModelSettings, budget: int | None) -> Need:
        """What the artifact will take."""
        ...

    async def open(self, name: str, path: str, settings: ModelSettings, changed: Changed) -> Engine:
        """The artifact's engine; `changed` is told when it ends or starts again by itself."""
        ...


class LocalOpener:
    """Opens models in this process."""

    async def locate(
        self, source: str, settings: ModelSettings, tell: Callable[[str], None]
    ) -> str:
        return await artifact_of(source, settings.device, tell)

    async def need(self, path: str, settings: ModelSettings, budget: int | None) -> Need:
        return await asyncio.to_thread(need_of, path, settings, budget)

    async def open(self, name: str, path: str, settings: ModelSettings, changed: Changed) -> Engine:
        opening = asyncio.create_task(asyncio.to_thread(_open_local, path, settings))
        try:
            await asyncio.wait([opening])
        except asyncio.CancelledError:
            # No thread can be stopped. Its memory is in use until what it opens is closed again.
            await _in_any_case(_discard(opening))
            raise
        return opening.result()


class IsolatedOpener(LocalOpener):
    """Opens each model in a process of its own, which `spawn` gives."""

    def __init__(self, patience: Patience | None = None, spawn: Spawn = spawned) -> None:
        self._patience = patience or Patience()
        self._spawn = spawn
        self._seen = WeightsSeen()

    async def open(self, name: str, path: str, settings: ModelSettings, changed: Changed) -> Engine:
        patience = self._patience
        if settings.watchdog is not None:
            patience = replace(patience, watchdog_seconds=settings.watchdog)
        return await IsolatedEngine.open(
            name, path, settings, patience, changed, self._spawn, self._seen
        )


def _open_local(path: str, settings: ModelSettings) -> LocalEngine:
    from ingot.serve.local import LocalEngine
    from ingot.serve.open_model import open_model

    return LocalEngine(open_model(path, settings), settings)


async def _discard(opening: asyncio.Task[LocalEngine]) -> None:
    """Closes what is being opened for nobody."""
    with suppress(Exception):  # it need not succeed
        await (await opening).close()


async def _in_any_case(work: Coroutine[Any, Any, None]) -> None:
    """Waits for the end of some work, and does not let it be cancelled meanwhile."""
    task = asyncio.create_task(work)
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([task])
