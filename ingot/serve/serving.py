"""`serve`: the parts of a server put together, from its start to its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import uvloop
from msgspec import Struct, structs

from ingot.errors import EngineDeadError, IngotError, UsageError, listed
from ingot.serve.edge.edge import Edge
from ingot.serve.edge.settings import EdgeSettings
from ingot.serve.garbage import search_rarely
from ingot.serve.http.app import app_of
from ingot.serve.isolated.spawn import Spares
from ingot.serve.openai.chat_defaults import ChatDefaults
from ingot.serve.openai.params import Terms
from ingot.serve.registry.entries import ModelStatus
from ingot.serve.registry.opening import IsolatedOpener, LocalOpener
from ingot.serve.registry.registry import ModelRegistry
from ingot.serve.requests.context import HttpSettings, ServerContext
from ingot.serve.settings import ModelSettings

ENDING_SECONDS = 1.0  # that open streams of gRPC have to end, when nothing runs any more

_log = logging.getLogger("ingot.serve")


class Named(NamedTuple):
    """A model to serve: its name, what it is made of, and further names."""

    name: str
    source: str
    aliases: tuple[str, ...] = ()


class Kept(NamedTuple):
    """Settings of a model, whether it stays loaded, and the defaults of its conversations."""

    settings: ModelSettings = ModelSettings()
    pinned: bool = False
    chats: ChatDefaults = ChatDefaults()


class Serving(Struct, frozen=True, kw_only=True):
    """Settings of all served models.

    model         how each is kept
    own           how those of some names are kept instead
    terms         what requests may ask for
    memory_bytes  what all models may take together; None: no bound
    lazy          a model is loaded at its first request, and not at the start
    in_process    models run in this process, and not each in one of its own
    grpc_port     where gRPC is served beside HTTP, 0 for any free port; None: nowhere
    """

    model: Kept = Kept()
    own: dict[str, Kept] = {}
    terms: Terms = Terms()
    memory_bytes: int | None = None
    lazy: bool = False
    in_process: bool = False
    grpc_port: int | None = None


def run(
    models: Sequence[Named], serving: Serving, settings: EdgeSettings, spares: Spares | None = None
) -> int:
    """`serve` in an event loop of its own. Raises what it raises."""
    return uvloop.run(serve(models, serving, settings, spares))


async def serve(
    models: Sequence[Named], serving: Serving, settings: EdgeSettings, spares: Spares | None = None
) -> int:
    """Serves until a signal asks for the end; returns the exit code. `spares` are for the models.

    Models load while the server listens already, and /health says when all are there. Raises
    UsageError for settings that cannot be, and what the models raise if none can be loaded.
    """
    _refuse_unknown(serving.own, models)
    spares = spares or Spares(0)
    opener = LocalOpener() if serving.in_process else IsolatedOpener(spawn=spares.take)
    async with ModelRegistry(opener, memory_bytes=serving.memory_bytes) as registry:
        edge = Edge(settings, registry.counters)
        for name, source, aliases in models:
            kept, pinned, _ = serving.own.get(name, serving.model)
            registry.register(name, source, kept, aliases=aliases, pinned=pinned)
        http = http_settings(serving, settings)
        server = ServerContext(models=registry, gate=edge, settings=http)
        server.starting.update([] if serving.lazy else [model.name for model in models])
        noting = asyncio.create_task(_note_events(registry, server, edge))
        loading = asyncio.create_task(_load(registry, server, edge))
        loading.add_done_callback(lambda _: spares.close())
        search_rarely()
        try:
            async with _grpc_beside(server, edge, serving.grpc_port) as on_ready:
                code = await edge.serve(edge.wrap(app_of(server)), on_ready)
        finally:
            noting.cancel()
            loading.cancel()
            errors = await asyncio.gather(loading, noting, return_exceptions=True)
    for error in errors:
        if isinstance(error, Exception):
            raise error
    return code


def http_settings(serving: Serving, settings: EdgeSettings) -> HttpSettings:
    """The switches of the HTTP front. A model that is registered later chats as all do."""
    return HttpSettings(
        terms=structs.replace(serving.terms, chats=serving.model.chats),
        chats={name: kept.chats for name, kept in serving.own.items()},
        load_seconds=settings.limits.load_seconds,
    )


def _refuse_unknown(own: Mapping[str, Kept], models: Sequence[Named]) -> None:
    names = [model.name for model in models]
    if unknown := sorted(own.keys() - names):
        raise UsageError(
            f"there is no model {unknown[0]!r} to set options of",
            hint=f"There are: {listed(names)}.",
        )


@asynccontextmanager
async def _grpc_beside(
    server: ServerContext, edge: Edge, port: int | None
) -> AsyncIterator[Callable[[], None]]:
    """Serves gRPC inside the block, if it is asked for. Gives what is to be called once HTTP is
    served as well."""
    if port is None:
        yield lambda: None
        return
    from ingot.serve.grpc.server import GrpcServer, GrpcSettings

    beside = GrpcServer(server, edge, GrpcSettings.of(edge.settings, port))
    await beside.start()
    fields = {"grpc_port": beside.port}
    try:
        yield lambda: _log.info("listening", extra={"fields": fields})
    finally:
        await beside.stop(ENDING_SECONDS)


async def _note_events(registry: ModelRegistry, server: ServerContext, edge: Edge) -> None:
    """Logs what happens to models, and tells the metrics. Ends the server, with an error, when the
    engines of all models have died and cannot be started again.

    Where the artifact is at fault, a new server could not open it either: this one waits for
    somebody to mend and reload it.
    """
    async for event in registry.events():
        _log.info("model", extra={"fields": {"model": event.name, "state": event.state}})
        edge.telemetry.note(event)
        known = registry.status()
        if not server.starting and all(map(_has_died, known)):
            edge.stop()
            raise EngineDeadError("no model is left: their engines died too often")


def _has_died(model: ModelStatus) -> bool:
    """Returns whether a model was loaded, and its engine died too often."""
    return model.state == "failed" and model.facts is not None and not model.is_damaged


async def _load(registry: ModelRegistry, server: ServerContext, edge: Edge) -> None:
    """Loads models side by side. If none can be loaded, ends the server and raises why."""
    names = sorted(server.starting)
    loads = (_load_one(registry, server, name) for name in names)
    errors = await asyncio.gather(*loads, return_exceptions=True)
    for name, error in zip(names, errors, strict=True):
        if error is not None:
            reason = error.found if isinstance(error, IngotError) else repr(error)
            _log.error("not loaded", extra={"fields": {"model": name, "reason": reason}})
    if errors and all(isinstance(error, BaseException) for error in errors):
        edge.stop()
        raise next(error for error in errors if isinstance(error, BaseException))
    loaded = [name for name, error in zip(names, errors, strict=True) if error is None]
    try:
        for name in loaded:
            await _check_chats(registry, server, name)
    except UsageError:
        edge.stop()
        raise


async def _check_chats(registry: ModelRegistry, server: ServerContext, name: str) -> None:
    """Raises UsageError for a model that has not what the server says of conversations."""
    chats = server.terms_of(name).chats
    if chats == ChatDefaults():
        return
    async with registry.lease(name) as engine:
        try:
            await asyncio.to_thread(lambda: chats.check(engine.tokenizer))
        except UsageError as error:
            raise UsageError(f"{name}: {error.found}", hint=error.hint) from error


async def _load_one(registry: ModelRegistry, server: ServerContext, name: str) -> None:
    try:
        await registry.load(name)
    finally:
        server.starting.discard(name)
