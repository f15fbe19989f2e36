"""`ModelRegistry`: models by name, loaded when they are needed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress

from ingot.errors import (
    DrainingError,
    EngineDeadError,
    QueueFullError,
    UnknownModelError,
    UsageError,
    listed,
)
from ingot.runtime.metrics import EngineCounters
from ingot.serve.engine import Engine, ModelFacts
from ingot.serve.isolated.supervisor import failure
from ingot.serve.registry.entries import (
    FAILED,
    UNLOADED,
    Entry,
    ModelEvent,
    ModelStatus,
    check_name,
    check_source,
)
from ingot.serve.registry.events import Events
from ingot.serve.registry.loader import Loader
from ingot.serve.registry.memory import MemoryBudget
from ingot.serve.registry.opening import IsolatedOpener, Opener
from ingot.serve.settings import ModelSettings

COUNTERS_SECONDS = 0.5  # for an engine to say how it fares
MAX_WAITING = 512  # requests for one model that wait until it is loaded


class ModelRegistry:
    """Models under names. Each is loaded at its first lease, or when it is asked for.

    For one event loop: make it inside of one, and call it there alone. `BlockingRegistry` is one
    for threads. There may be several registries in a process.

    Args:
        opener: where engines come from; None: processes of their own.
        memory_bytes: what loaded models may take together; None: no bound. Where a model needs
            more than is free, idle ones are unloaded, the longest unused first.
        max_waiting: the most leases that wait for one model to load.
    """

    def __init__(
        self,
        opener: Opener | None = None,
        *,
        memory_bytes: int | None = None,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._max_waiting = max_waiting
        self._entries: dict[str, Entry] = {}
        self._aliases: dict[str, str] = {}
        self._events = Events()
        opener = opener or IsolatedOpener()
        self._loader = Loader(opener, MemoryBudget(memory_bytes), self._events, self._entries)
        self._closed = False

    def register(
        self,
        name: str,
        source: str,
        settings: ModelSettings | None = None,
        *,
        aliases: Iterable[str] = (),
        pinned: bool = False,
    ) -> None:
        """Makes a model known; nothing is read or loaded yet.

        Args:
            source: an artifact, a model directory or a name on the hub. The latter two are
                compiled into the cache when the model is first loaded.
            pinned: whether it stays loaded when memory is short.

        Raises UsageError for names that are taken or none, and for a source that is no UTF-8.
        """
        aliases = [*aliases]
        for each in (name, *aliases):
            self._check_free(each)
        check_source(source)
        self._entries[name] = Entry(name, source, settings or ModelSettings(), pinned)
        self._aliases |= dict.fromkeys(aliases, name)
        self._events.tell(name, UNLOADED, "registered")

    def alias(self, alias: str, name: str) -> None:
        """Lets a model be called by another name as well, instead of the one that had it before.

        Raises UsageError for the name of a model, and UnknownModelError.
        """
        name = self._find(name).name
        if alias in self._entries:
            raise UsageError(f"{alias} is a model", hint="Give a name that no model has.")
        self._aliases[check_name(alias)] = name

    def pin(self, name: str, pinned: bool = True) -> None:
        """Keeps a model loaded when memory is short or it is idle, or lets it go. It is not loaded
        by that. Raises UnknownModelError."""
        entry = self._find(name)
        entry.pinned = pinned
        if entry.instance is not None:
            self._loader.idle(entry, entry.instance)

    def status(self) -> list[ModelStatus]:
        """All models, in the order in which they were registered."""
        aliases: dict[str, list[str]] = {name: [] for name in self._entries}
        for alias, name in self._aliases.items():
            aliases[name].append(alias)
        return [entry.status(aliases[name]) for name, entry in self._entries.items()]

    async def counters(self) -> dict[str, tuple[ModelFacts, EngineCounters]]:
        """Counters of the engines of all loaded models; those that do not answer soon are left out.

        That counts as no use of a model.
        """
        engines = {e.name: e.instance.engine for e in self._entries.values() if e.instance}
        answers = await asyncio.gather(*map(_counters, engines.values()))
        both = zip(engines.items(), answers, strict=True)
        return {name: (engine.facts, found) for (name, engine), found in both if found is not None}

    def name_of(self, name: str) -> str:
        """The name of the model that is called so, which may be by an alias.

        Raises UnknownModelError.
        """
        return self._find(name).name

    def events(self) -> AsyncIterator[ModelEvent]:
        """Stream of model events from now on; a slow reader misses the oldest."""
        return self._events.watch()

    @asynccontextmanager
    async def lease(self, name: str) -> AsyncIterator[Engine]:
        """The engine of a model, which is not unloaded meanwhile.

        Waits for a model that is not loaded. Raises UnknownModelError, DrainingError after
        `close`, QueueFullError where too many wait, and EngineDeadError where it cannot be loaded.
        """
        entry = self._find(name)
        while entry.instance is None:
            await self._wait(entry)
        instance = entry.instance
        if instance.state == FAILED:
            raise failure(entry.name)
        self._loader.begin_use(instance)
        try:
            yield instance.engine
        finally:
            self._loader.end_use(entry, instance)

    async def load(self, name: str) -> None:
        """Loads a model, also one that has failed; does nothing for one that is loaded.

        Raises UnknownModelError, and why it cannot be loaded.
        """
        entry = self._find(name)
        if entry.state == FAILED:
            await self._loader.unload(entry, force=True)
        if entry.instance is None:
            done = self._loader.begin(entry)
            await asyncio.wait([done])
            done.result()

    async def unload(self, name: str, *, force: bool = False) -> None:
        """Unloads a model: when its leases have ended, or at once, with an error for their jobs.

        The next lease loads it again. Raises UnknownModelError.
        """
        await self._loader.unload(self._find(name), force=force)

    async def reload(
        self, name: str, source: str | None = None, settings: ModelSettings | None = None
    ) -> None:
        """Opens a model anew, from another source or with other settings if they are given.

        What runs goes on with the old engine, which is closed afterwards. No request is lost.
        Where a new engine cannot be opened, the old one stays. Raises UnknownModelError, and why it
        cannot be opened.
        """
        entry = self._find(name)
        check_source(source or entry.source)
        await self._loader.reload(entry, source or entry.source, settings or entry.settings)

    async def remove(self, name: str) -> None:
        """Unloads a model and forgets it and its aliases. Raises UnknownModelError."""
        entry = self._find(name)
        self._entries.pop(entry.name).removed = True
        self._aliases = {alias: of for alias, of in self._aliases.items() if of != entry.name}
        await self._loader.unload(entry, force=False)

    async def close(self) -> None:
        """Unloads all models at once, and refuses all that comes. May be called twice."""
        self._closed = True
        for entry in self._entries.values():
            entry.removed = True
        unload = self._loader.unload
        await asyncio.gather(*(unload(each, force=True) for each in self._entries.values()))
        self._events.close()

    async def __aenter__(self) -> ModelRegistry:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _wait(self, entry: Entry) -> None:
        """Waits until a model is loaded. Raises why it is not."""
        if entry.state == FAILED and not entry.may_heal:
            raise failure(entry.name)
        if entry.num_waiting >= self._max_waiting:
            raise QueueFullError(
                f"{entry.num_waiting} requests wait for {entry.name} to load",
                hint="Try again later.",
            )
        entry.num_waiting += 1
        try:
            done = self._loader.begin(entry)
            await asyncio.wait([done])
        finally:
            entry.num_waiting -= 1
            if entry.instance is not None:  # and perhaps nobody uses it: who waited may leave
                self._loader.idle(entry, entry.instance)
        self._refuse_closed()
        error = done.exception()
        if error is not None:
            raise failure(entry.name) from error

    def _find(self, name: str) -> Entry:
        if asyncio.get_running_loop() is not self._loop:
            raise UsageError(
                "this registry belongs to another event loop",
                hint="Use BlockingRegistry from threads.",
            )
        self._refuse_closed()
        entry = self._entries.get(self._aliases.get(name, name))
        if entry is None:
            raise UnknownModelError(
                f"there is no model {name!r:.80}",
                hint=f"There are: {listed([*self._entries]) or 'none'}.",
            )
        return entry

    def _refuse_closed(self) -> None:
        if self._closed:
            raise DrainingError("this server ends", hint="Send the request to another.")

    def _check_free(self, name: str) -> None:
        if check_name(name) in self._entries or name in self._aliases:
            raise UsageError(f"the name {name} is taken", hint="Give every model its own.")


async def _counters(engine: Engine) -> EngineCounters | None:
    with suppress(TimeoutError, EngineDeadError):
        async with asyncio.timeout(COUNTERS_SECONDS):
            return await engine.counters()
    return None
