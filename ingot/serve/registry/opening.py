"""Opening of models, in their own processes or in this one, and the memory that they will take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from ingot.artifact.plan import Plan
from ingot.artifact.reader import Artifact, weights_name
from ingot.artifact.target import kind_of_name
from ingot.runtime.pool_size import PoolSize, pool_size
from ingot.serve.engine import Engine
from ingot.serve.isolated.client import IsolatedEngine
from ingot.serve.isolated.spawn import Spawn, spawned
from ingot.serve.isolated.supervisor import Changed, Patience
from ingot.serve.isolated.weights_seen import WeightsSeen
from ingot.serve.registry.compiling import artifact_of
from ingot.serve.settings import ModelSettings

if TYPE_CHECKING:
    from ingot.serve.local import LocalEngine

SHARE = 4  # of a budget, one model's keys and values take at most this part, unless told
LOGIT_BYTES = 4


class Opener(Protocol):
    """Protocol of the opener of engines."""

    async def locate(
        self, source: str, settings: ModelSettings, tell: Callable[[str], None]
    ) -> str:
        """The artifact of a source, which may have to be made first; `tell` gets its progress."""
        ...

    async def need(self, path: str, settings: ModelSettings, budget: int | None) -> Need:
        """Memory that the artifact will take."""
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


class Need(Struct, frozen=True):
    """Memory that a model takes, and the settings with which it takes no more. `created` and
    `max_model_len` are what its facts will say; 0 and None: not known before it is open."""

    nbytes: int
    settings: ModelSettings
    created: int = 0
    max_model_len: int | None = None


def need_of(path: str, settings: ModelSettings, budget: int | None = None) -> Need:
    """The bytes of the weights, of all keys and values, and of what a step computes in.

    Without `kv_bytes`, keys and values get what all seats can need, and at most half of the memory
    that is free and a quarter of the budget. Raises ArtifactError, IncompatibleHostError, and
    ResourceError where there is too little for one sequence.
    """
    artifact = Artifact.open(path, device=settings.device)
    entry = artifact.target
    plan = artifact.plan_of(entry)
    weights = artifact.manifest.files[weights_name(entry.layout)].size
    pool = _pool(plan, settings, budget).nbytes(plan)
    # The engine is told, so that it takes what is counted here.
    settings = replace(settings, kv_bytes=pool or None)
    return Need(
        weights + pool + _fixed(artifact, plan),
        settings,
        artifact.created,
        settings.context or artifact.manifest.limits.max_model_len,
    )


def _pool(plan: Plan, settings: ModelSettings, budget: int | None) -> PoolSize:
    limits = plan.limits
    context = min(settings.context or limits.max_model_len, limits.max_model_len)
    seats = min(settings.seats or limits.max_num_seqs, limits.max_num_seqs)
    if settings.kv_bytes is not None:
        return pool_size(plan, context, settings.kv_bytes)
    most = pool_size(plan, context, None, spare=1 << 62)
    one = PoolSize(*(count // limits.max_num_seqs for count in most))
    found = _least(PoolSize(*(count * seats for count in one)), pool_size(plan, context, None))
    if budget is None or not one.nbytes(plan):
        return found
    share = max(one.nbytes(plan), budget // SHARE)
    return _least(found, pool_size(plan, context, None, spare=share))


def _least(one: PoolSize, other: PoolSize) -> PoolSize:
    return PoolSize(*map(min, one, other))


def _fixed(artifact: Artifact, plan: Plan) -> int:
    """Bytes of what a step computes in."""
    if kind_of_name(artifact.target.name) != "cpu":
        return plan.memory.arena_bytes
    logits = plan.limits.max_logit_rows * artifact.manifest.model.vocab_size * LOGIT_BYTES
    return plan.memory.arena_bytes + logits
