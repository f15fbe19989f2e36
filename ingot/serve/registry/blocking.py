"""`BlockingRegistry`: a `ModelRegistry` for threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from typing import Any, TypeVar, cast

from ingot.runtime.metrics import EngineCounters
from ingot.runtime.tokenizer import Tokenizer
from ingot.serve.engine import Engine, Job, ModelFacts, Progress
from ingot.serve.registry.entries import ModelStatus
from ingot.serve.registry.opening import Opener
from ingot.serve.registry.registry import MAX_WAITING, ModelRegistry
from ingot.serve.settings import ModelSettings

T = TypeVar("T")


class _Loop:
    """An event loop in a thread of its own, and calls from all others."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="ingot-registry", daemon=True
        )
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine there and waits for it; whatever ends the wait cancels it."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[[], T]) -> T:
        """Calls a function there and waits for it."""

        async def called() -> T:
            return function()

        return self.run(called())

    @property
    def is_open(self) -> bool:
        return not self._loop.is_closed()

    def close(self) -> None:
        """Ends the loop and its thread."""
        self.run(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class BlockingRegistry:
    """The calls of `ModelRegistry`, each of which waits for its end. Safe to use from any thread.

    The registry lives on an event loop in a thread of its own. A context manager. The arguments,
    and what the calls raise, are those of `ModelRegistry`.
    """

    def __init__(
        self,
        opener: Opener | None = None,
        *,
        memory_bytes: int | None = None,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        self._loop = _Loop()
        make = partial(ModelRegistry, opener, memory_bytes=memory_bytes, max_waiting=max_waiting)
        self._registry = self._loop.call(make)

    def register(
        self,
        name: str,
        source: str,
        settings: ModelSettings | None = None,
        *,
        aliases: Iterable[str] = (),
        pinned: bool = False,
    ) -> None:
        register = self._registry.register
        self._loop.call(partial(register, name, source, settings, aliases=aliases, pinned=pinned))

    def alias(self, alias: str, name: str) -> None:
        self._loop.call(partial(self._registry.alias, alias, name))

    def pin(self, name: str, pinned: bool = True) -> None:
        self._loop.call(partial(self._registry.pin, name, pinned))

    def status(self) -> list[ModelStatus]:
        return self._loop.call(self._registry.status)

    def load(self, name: str) -> None:
        self._loop.run(self._registry.load(name))

    def unload(self, name: str, *, force: bool = False) -> None:
        self._loop.run(self._registry.unload(name, force=force))

    def reload(
        self, name: str, source: str | None = None, settings: ModelSettings | None = None
    ) -> None:
        self._loop.run(self._registry.reload(name, source, settings))

    def remove(self, name: str) -> None:
        self._loop.run(self._registry.remove(name))

    @contextmanager
    def lease(self, name: str) -> Generator[BlockingEngine, None, None]:
        lease = self._registry.lease(name)
        engine = self._loop.run(_entered(lease))
        try:
            yield BlockingEngine(engine, self._loop)
        finally:
            self._loop.run(_left(lease))

    def close(self) -> None:
        """Unloads all models at once. May be called twice."""
        if self._loop.is_open:
            self._loop.run(self._registry.close())
            self._loop.close()

    def __enter__(self) -> BlockingRegistry:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BlockingEngine:
    """An engine for threads, as long as it is leased."""

    def __init__(self, engine: Engine, loop: _Loop) -> None:
        self._engine = engine
        self._loop = loop

    @property
    def facts(self) -> ModelFacts:
        return self._engine.facts

    @property
    def tokenizer(self) -> Tokenizer:
        """Raises TokenizerError where the model has none."""
        return self._engine.tokenizer

    def ask(self, job: Job) -> Generator[Progress, None, None]:
        """Runs a job, as `Engine.ask` does; closing the generator aborts the job."""
        stream = cast(AsyncGenerator[Progress, None], self._engine.ask(job))
        try:
            while (progress := self._loop.run(_next(stream))) is not None:
                yield progress
        finally:
            self._loop.run(_close(stream))

    def counters(self) -> EngineCounters:
        return self._loop.run(self._counters())

    async def _counters(self) -> EngineCounters:
        return await self._engine.counters()


async def _entered(lease: AbstractAsyncContextManager[Engine]) -> Engine:
    return await lease.__aenter__()


async def _left(lease: AbstractAsyncContextManager[Engine]) -> None:
    await lease.__aexit__(None, None, None)


async def _next(stream: AsyncGenerator[Progress, None]) -> Progress | None:
    return await anext(stream, None)


async def _close(stream: AsyncGenerator[Progress, None]) -> None:
    await stream.aclose()
