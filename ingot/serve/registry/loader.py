"""`Loader`: brings models into memory and out of it again."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial

from ingot.errors import (
    ArtifactError,
    EngineDeadError,
    IngotError,
    InternalError,
    ResourceError,
    VerificationError,
    describe,
    listed,
)
from ingot.serve.isolated.supervisor import DAMAGED
from ingot.serve.registry.entries import FAILED, LOADED, LOADING, Entry, Instance, LoadUnderWay
from ingot.serve.registry.events import Events
from ingot.serve.registry.memory import MemoryBudget
from ingot.serve.registry.opening import Need, Opener
from ingot.serve.settings import ModelSettings

_log = logging.getLogger(__name__)


class Loader:
    """Loads, unloads and reloads the models of a registry. For one event loop."""

    def __init__(
        self, opener: Opener, memory: MemoryBudget, events: Events, entries: Mapping[str, Entry]
    ) -> None:
        self._opener = opener
        self._memory = memory
        self._events = events
        self._entries = entries

    def begin(self, entry: Entry) -> asyncio.Future[None]:
        """Loads a model unless that is under way. What is returned becomes None or the error."""
        if entry.loading is None:
            done = asyncio.get_running_loop().create_future()
            loading = entry.loading = LoadUnderWay(done, asyncio.create_task(self._load(entry)))
            # Not at the end of the task: one that is cancelled before it begins has none.
            loading.task.add_done_callback(partial(self._end_load, entry, loading))
        return entry.loading.done

    async def unload(self, entry: Entry, *, force: bool) -> None:
        """Unloads a model when its leases have ended, or at once with `force`; ends its loading."""
        if entry.loading is not None:
            entry.loading.task.cancel()
            await asyncio.wait([entry.loading.task])
        async with entry.turn:
            if entry.instance is not None:
                self._retire(entry)
            entry.error = None
            closing = [*entry.retired.values()]
        if force:
            for instance in entry.retired:
                instance.unused.set()
        if closing:
            await asyncio.wait(closing)

    async def reload(self, entry: Entry, source: str, settings: ModelSettings) -> None:
        """Opens a source and lets it take over; what runs on the old engine ends there.

        Where memory has no room for both, the old one is unloaded first, and requests wait. If the
        new one cannot be opened, the old one stays, unless it had to go. Raises IngotError.
        """
        async with self._turn(entry):
            path = await self._locate(entry, source, settings)
            need = await self._opener.need(path, settings, self._memory.budget)
            if entry.instance is not None and not self._fits_beside(entry, need.nbytes):
                await asyncio.wait([self._retire(entry)])
            try:
                instance = await self._open(entry, path, need)
            except IngotError as error:
                if entry.instance is None:
                    self._fail(entry, error)
                raise
            old, entry.source, entry.settings = entry.instance, source, settings
            self._put(entry, instance)
            if old is not None:
                self._close_later(entry, old)

    def begin_use(self, instance: Instance) -> None:
        """Counts a lease."""
        instance.num_leases += 1
        instance.unused.clear()
        instance.stop_timer()

    def end_use(self, entry: Entry, instance: Instance) -> None:
        """Counts one less."""
        instance.num_leases -= 1
        instance.last_used, entry.last_used = time.monotonic(), time.time()
        if not instance.num_leases:
            instance.unused.set()
            self.idle(entry, instance)

    def idle(self, entry: Entry, instance: Instance) -> None:
        """Lets an unused instance be unloaded: after its time, or when memory is short."""
        self._memory.stir()
        instance.stop_timer()
        seconds = entry.settings.keep_alive
        in_use = instance.num_leases or entry.pinned or entry.num_waiting
        if seconds is not None and entry.instance is instance and not in_use:
            loop = asyncio.get_running_loop()
            instance.expiry = loop.call_later(seconds, self._expire, entry, instance)

    def _expire(self, entry: Entry, instance: Instance) -> None:
        if entry.instance is instance and not (instance.num_leases or entry.pinned):
            self._retire(entry)

    @asynccontextmanager
    async def _turn(self, entry: Entry) -> AsyncIterator[None]:
        """Loads and reloads a model one after the other, and none of one that was given up."""
        async with entry.turn:
            if entry.removed:
                raise _unloaded(entry)
            try:
                yield
            finally:
                entry.progress = None
                self._retire_removed(entry)

    def _retire_removed(self, entry: Entry) -> None:
        """Closes what was loaded for a model that was given up meanwhile, perhaps by somebody who
        did not wait for the end of this."""
        if entry.removed and entry.instance is not None:
            self._retire(entry)

    async def _load(self, entry: Entry) -> None:
        """Loads a model. Raises IngotError."""
        entry.error = None
        try:
            async with self._turn(entry):
                if entry.instance is None:  # a reload may have come before
                    await self._open_new(entry)
        except IngotError:
            raise
        except Exception as error:
            _log.exception("loading %s failed", entry.name)
            raise InternalError(describe(error)) from error

    def _end_load(self, entry: Entry, loading: LoadUnderWay, task: asyncio.Task[None]) -> None:
        """Tells those who wait how a load has ended."""
        error = _unloaded(entry) if task.cancelled() else task.exception()
        if loading.done.done():  # a reload has brought what was waited for
            return
        entry.loading = entry.progress = None
        if error is None:
            loading.done.set_result(None)
            return
        loading.done.set_exception(error)
        loading.done.exception()  # looked at: perhaps nobody waits
        if isinstance(error, _Unloaded):
            self._events.tell(entry.name, entry.state, error.found)
        else:
            assert isinstance(error, IngotError), "a load raises no other"
            self._fail(entry, error)

    async def _open_new(self, entry: Entry) -> None:
        self._note(entry, "looking for the artifact")
        path = await self._locate(entry, entry.source, entry.settings)
        need = await self._opener.need(path, entry.settings, self._memory.budget)
        self._put(entry, await self._open(entry, path, need))

    async def _locate(self, entry: Entry, source: str, settings: ModelSettings) -> str:
        """The artifact of a source, which may have to be compiled first."""
        began = time.monotonic()
        path = await self._opener.locate(source, settings, partial(self._note, entry))
        if path != source:
            seconds = time.monotonic() - began
            self._events.tell(entry.name, entry.state, "found", compile_seconds=seconds)
        return path

    async def _open(self, entry: Entry, path: str, need: Need) -> Instance:
        """A new instance, once there is memory for it."""
        nbytes = entry.nbytes = need.nbytes
        entry.created = need.created or entry.created
        entry.max_model_len = need.max_model_len or entry.max_model_len
        if not self._memory.fits(nbytes):
            self._note(entry, "waiting for memory")
        await self._memory.take(nbytes, partial(self._evict, entry, nbytes))
        instance = Instance(nbytes)
        try:
            self._note(entry, "opening the artifact")
            began = time.monotonic()
            changed = partial(self._changed, entry, instance)
            instance.engine = await self._opener.open(entry.name, path, need.settings, changed)
            entry.load_seconds = time.monotonic() - began
        except BaseException:
            self._memory.free(nbytes)
            raise
        return instance

    def _put(self, entry: Entry, instance: Instance) -> None:
        """Lets new requests go to an instance."""
        entry.instance, entry.error, entry.is_damaged = instance, None, False
        loading = entry.loading
        if loading is not None and loading.task is not asyncio.current_task():
            # It would wait for the next reload, and those who wait for it would hold memory.
            entry.loading = None
            loading.done.set_result(None)
            loading.task.cancel()
        self._events.tell(entry.name, LOADED, seconds=entry.load_seconds)
        self.idle(entry, instance)

    def _retire(self, entry: Entry) -> asyncio.Task[None]:
        """Lets no new request go to the instance, and closes it when its leases have ended."""
        instance, entry.instance = entry.instance, None
        assert instance is not None, "only what is loaded is retired"
        task = self._close_later(entry, instance)
        self._events.tell(entry.name, entry.state)
        return task

    def _close_later(self, entry: Entry, instance: Instance) -> asyncio.Task[None]:
        instance.stop_timer()
        task = asyncio.create_task(self._close_unused(entry, instance))
        entry.retired[instance] = task
        # An engine and its supervisor know each other. Its files are open until that is found.
        task.add_done_callback(lambda _: gc.collect())
        return task

    async def _close_unused(self, entry: Entry, instance: Instance) -> None:
        await instance.unused.wait()
        try:
            await instance.engine.close()
        except Exception:
            _log.exception("closing the engine of %s failed", entry.name)
        del entry.retired[instance]
        self._memory.free(instance.nbytes)
        self._events.tell(entry.name, entry.state, "an engine was closed")

    def _evict(self, entry: Entry, nbytes: int) -> asyncio.Task[None] | None:
        """Unloads the idle model that can best be spared; None while all are in use.

        Raises ResourceError where those that must stay leave too little.
        """
        others = [(e, e.instance) for e in self._entries.values() if e.instance and e is not entry]
        pinned = [(e.name, i.nbytes) for e, i in others if e.pinned]
        budget = self._memory.budget or 0
        if sum(size for _, size in pinned) + nbytes > budget:
            raise ResourceError(
                f"the model takes {nbytes} bytes; the budget is {budget}, and pinned models have "
                f"{sum(size for _, size in pinned)} of it: {listed([name for name, _ in pinned])}",
                hint="Unload one of them, or raise the budget.",
            )
        idle = [
            (-e.settings.priority, i.last_used, e)
            for e, i in others
            if not (e.pinned or e.num_waiting or i.num_leases)
        ]
        return self._retire(min(idle, key=lambda each: each[:2])[2]) if idle else None

    def _fits_beside(self, entry: Entry, nbytes: int) -> bool:
        """Returns whether there can be room for so much beside what is loaded of the same model."""
        if self._memory.budget is None or entry.instance is None:
            return True
        stays = [e.instance for e in self._entries.values() if e.instance and e.pinned]
        own = 0 if entry.pinned else entry.instance.nbytes
        return sum(each.nbytes for each in stays) + own + nbytes <= self._memory.budget

    def _changed(self, entry: Entry, instance: Instance, state: str, why: str) -> None:
        """An engine died, was started again or was given up."""
        damaged = state == DAMAGED
        state = instance.state = FAILED if damaged else state
        if entry.instance is instance:
            entry.error, entry.is_damaged = (why if state == FAILED else None), damaged
            entry.num_restarts += state == LOADING
            self._events.tell(entry.name, state, why, died=state == LOADING, damaged=damaged)

    def _note(self, entry: Entry, text: str) -> None:
        entry.progress = text
        self._events.tell(entry.name, entry.state, text)

    def _fail(self, entry: Entry, error: IngotError) -> None:
        entry.error, entry.may_heal = error.found, isinstance(error, ResourceError)
        _log.error("the model %s cannot be loaded: %s", entry.name, error.found)
        damaged = isinstance(error, (ArtifactError, VerificationError))
        self._events.tell(entry.name, entry.state, error.found, damaged=damaged)


class _Unloaded(EngineDeadError):
    """Error of requests that wait for a model that is unloaded before it is loaded."""


def _unloaded(entry: Entry) -> _Unloaded:
    return _Unloaded(f"the model {entry.name} was unloaded", hint="Load it again.")
