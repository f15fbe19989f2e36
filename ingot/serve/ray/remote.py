"""`RemoteEngine`: all replicas of a model as one engine, and the models of an application."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
from ray.exceptions import RayError, TaskCancelledError
from ray.serve.exceptions import RayServeException

from ingot.errors import EngineDeadError, RequestError, TokenizerError, UnknownModelError
from ingot.runtime.metrics import EngineCounters
from ingot.runtime.tokenizer import Tokenizer
from ingot.serve.engine import Job, ModelFacts, Progress
from ingot.serve.ray.affinity import prefix_blocks
from ingot.serve.ray.replay import Replay, seeded
from ingot.serve.ray.wire import Description, decode_description, decode_said, encode
from ingot.serve.settings import ModelSettings

TRIES = 2  # a job whose replica was lost is computed once more
LOST = (RayError, RayServeException)

_log = logging.getLogger(__name__)


class RemoteEngine:
    """An `Engine` whose jobs run on replicas, each on the one that has most of its prefix."""

    def __init__(self, handle: Any, description: Description) -> None:
        self._asking = handle.ask.options(stream=True)
        self._counting = handle.counters
        self._tokenizer = description.tokenizer()
        self.facts: ModelFacts = description.facts

    @property
    def tokenizer(self) -> Tokenizer:
        """Raises TokenizerError where the model has none."""
        if self._tokenizer is None:
            raise TokenizerError("the model has no tokenizer", hint="Give prompts as tokens.")
        return self._tokenizer

    async def ask(self, job: Job) -> AsyncGenerator[Progress, None]:
        """Runs a job; see `Engine`. Where its replica is lost, another one goes on, once."""
        job = seeded(job)
        data, blocks = encode(job), prefix_blocks(job.token_ids, job.salt)
        replay = Replay()
        for attempt in range(1, TRIES + 1):
            try:
                async with aclosing(self._on_a_replica(data, blocks)) as steps:
                    async for progress in steps:
                        if (new := replay.new(progress)) is not None:
                            yield new
                return
            except TaskCancelledError:  # by Ray, whose client has left
                raise asyncio.CancelledError from None
            except LOST as error:
                if replay.finished:  # all that was lost is the end of the call
                    return
                _log.warning("job %s: attempt %d: a replica was lost: %s", job.id, attempt, error)
                if attempt == TRIES:
                    raise _lost() from error
                replay.again()

    async def counters(self) -> EngineCounters:
        """Counters of a replica. Raises EngineDeadError."""
        try:
            data = await self._counting.remote()
        except LOST as error:
            raise _lost() from error
        return msgspec.msgpack.decode(data, type=EngineCounters)

    async def close(self) -> None:
        """Nothing: replicas are Ray's."""

    async def _on_a_replica(
        self, data: bytes, blocks: Sequence[int]
    ) -> AsyncGenerator[Progress, None]:
        """Progress of a job on a replica, read to its end: only then Ray counts the request as
        done."""
        responses = self._asking.remote(data, blocks)
        finished = False
        try:
            async for answer in responses:
                said = decode_said(answer)
                if said.fault is not None:
                    raise said.fault.error()
                assert said.progress is not None, "a replica says either"
                yield said.progress
                finished = said.progress.finished
            if not finished:
                raise RayServeException("a replica ended its answer too early")
        finally:
            responses.cancel()


def _by_ray() -> RequestError:
    return RequestError(
        "models of this server are loaded and unloaded by Ray",
        hint="Change the application's file, and run `serve deploy` with it.",
    )


def _lost() -> EngineDeadError:
    return EngineDeadError("the replica that computed this was lost", hint="Send it again.")


@dataclass(frozen=True, slots=True)
class RemoteStatus:
    """Status of an application's model."""

    name: str
    state: str
    aliases: Sequence[str] = ()
    facts: ModelFacts | None = None
    error: str | None = None
    created: int = 0
    max_model_len: int | None = None


def _loaded(name: str, facts: ModelFacts) -> RemoteStatus:
    return RemoteStatus(
        name, "loaded", facts=facts, created=facts.created, max_model_len=facts.max_model_len
    )


class RemoteModels:
    """The models of an application by name, as the front asks a registry for them.

    A model is described by one of its replicas when it is first asked for.
    """

    def __init__(self, handles: Mapping[str, Any]) -> None:
        self._handles = handles
        self._began = int(time.time())
        self._engines: dict[str, RemoteEngine] = {}
        self._locks = {name: asyncio.Lock() for name in handles}

    @asynccontextmanager
    async def lease(self, name: str) -> AsyncIterator[RemoteEngine]:
        """The engine of a model. Raises UnknownModelError, and EngineDeadError where no replica
        answers."""
        self.name_of(name)
        async with self._locks[name]:  # the first request asks a replica, the others wait for it
            if name not in self._engines:
                self._engines[name] = await self._described(name)
        yield self._engines[name]

    def status(self) -> list[RemoteStatus]:
        """Status of all models."""
        return [
            _loaded(name, engine.facts)
            if (engine := self._engines.get(name))
            else RemoteStatus(name, "unloaded", created=self._began)
            for name in self._handles
        ]

    def name_of(self, name: str) -> str:
        """The name of a model. Raises UnknownModelError."""
        if name not in self._handles:
            raise UnknownModelError(
                f"the model {name[:80]!r} does not exist",
                hint=f"Served here: {', '.join(self._handles)}.",
            )
        return name

    async def events(self) -> AsyncIterator[Any]:
        """None: Ray loads and unloads."""
        none: tuple[Any, ...] = ()
        for event in none:
            yield event

    def register(self, name: str, source: str, *_: object, **__: object) -> None:
        """Raises RequestError, as those below do."""
        raise _by_ray()

    def alias(self, alias: str, name: str) -> None:
        raise _by_ray()

    def pin(self, name: str, pinned: bool = True) -> None:
        raise _by_ray()

    async def load(self, name: str) -> None:
        raise _by_ray()

    async def unload(self, name: str, *, force: bool = False) -> None:
        raise _by_ray()

    async def reload(
        self, name: str, source: str | None = None, settings: ModelSettings | None = None
    ) -> None:
        raise _by_ray()

    async def _described(self, name: str) -> RemoteEngine:
        handle = self._handles[name]
        try:
            data = await handle.describe.remote()
        except LOST as error:
            raise _lost() from error
        return await asyncio.to_thread(RemoteEngine, handle, decode_description(data))
