"""`/models`: which models there are, and how administrators load, unload and replace them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any, cast

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ingot.errors import UnknownModelError, UsageError
from ingot.serve.http.reply import Receive, Reply, Scope, Send, replying
from ingot.serve.http.routes import json, route
from ingot.serve.openai.decode import converted_fields
from ingot.serve.openai.fields import FieldError, Name
from ingot.serve.requests.context import ServerContext
from ingot.serve.settings import ModelSettings

# What only administrators see of models and of what happens to them: it can name files.
_PRIVATE = ("source", "settings", "error", "progress", "text")


class LoadRequest(Struct, kw_only=True):
    """Loads a model; with a source, one that is not registered yet is registered first.

    Of one that is registered, `aliases` are added, and `pinned` is changed if it is given.
    """

    model: Name
    source: str | None = None
    aliases: list[Name] | None = None
    pinned: bool | None = None
    settings: dict[str, Any] | None = None


class UnloadRequest(Struct, kw_only=True):
    """Unloads a model when its requests have ended or, with `force`, at once."""

    model: Name
    force: bool | None = None


class ReloadRequest(Struct, kw_only=True):
    """Opens a model anew, from another source or with other settings if they are given."""

    model: Name
    source: str | None = None
    settings: dict[str, Any] | None = None


class _Settings(Struct, kw_only=True):
    settings: ModelSettings


def model_routes(server: ServerContext) -> list[Route]:
    """Routes that list, load, unload and reload models, and stream their events."""
    return [
        route(server, "GET", "/models", _list),
        route(server, "POST", "/models/load", _load),
        route(server, "POST", "/models/unload", _unload),
        route(server, "POST", "/models/reload", _reload),
        Route("/models/events", ModelEvents(server), methods=["GET"]),
    ]


async def _list(server: ServerContext, request: Request) -> Response:
    is_admin = request.scope.get("state", {}).get("admin", False)
    shown = [_shown(status, is_admin=is_admin) for status in server.models.status()]
    return json({"object": "list", "data": shown})


def _settings(asked: LoadRequest | ReloadRequest) -> ModelSettings | None:
    """The settings that a request has. One that is null was left out. Raises FieldError."""
    if asked.settings is None:
        return None
    given = {name: value for name, value in asked.settings.items() if value is not None}
    try:
        return converted_fields({"settings": given}, b"", _Settings)[0].settings
    except FieldError:
        raise
    except UsageError as error:  # a value out of its range, which begins with its name
        name = error.found.partition(" ")[0]
        raise FieldError(f"settings.{name}", error.found, hint=error.hint) from None


async def _load(server: ServerContext, request: Request) -> Response:
    asked = await server.decode(await request.body(), LoadRequest)
    settings = _settings(asked)
    try:
        name = server.models.name_of(asked.model)
    except UnknownModelError:
        if asked.source is None:
            raise
        pinned = bool(asked.pinned)
        server.models.register(
            asked.model, asked.source, settings, aliases=asked.aliases or (), pinned=pinned
        )
    else:
        _change(server, name, asked, settings)
    await server.models.load(asked.model)
    return _status(server, asked.model)


def _change(
    server: ServerContext, name: str, asked: LoadRequest, settings: ModelSettings | None
) -> None:
    """Raises FieldError for what only a reload changes."""
    status = _status_of(server, name)
    for field, given in (("source", asked.source), ("settings", settings)):
        if given is not None and given != getattr(status, field, given):
            raise FieldError(
                field, f"{name} has another {field} already", hint="POST /models/reload changes it."
            )
    for alias in asked.aliases or ():
        server.models.alias(alias, name)
    if asked.pinned is not None:
        server.models.pin(name, asked.pinned)


async def _unload(server: ServerContext, request: Request) -> Response:
    asked = await server.decode(await request.body(), UnloadRequest)
    await server.models.unload(asked.model, force=bool(asked.force))
    return _status(server, asked.model)


async def _reload(server: ServerContext, request: Request) -> Response:
    asked = await server.decode(await request.body(), ReloadRequest)
    await server.models.reload(asked.model, asked.source, _settings(asked))
    return _status(server, asked.model)


def _status(server: ServerContext, model: str) -> Response:
    status = _status_of(server, server.models.name_of(model))
    return json({"model": _shown(status, is_admin=True)})


def _status_of(server: ServerContext, name: str) -> Any:
    return next(each for each in server.models.status() if each.name == name)


def _shown(told: Any, *, is_admin: bool) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(told)
    return fields if is_admin else {k: v for k, v in fields.items() if k not in _PRIVATE}


class ModelEvents:
    """`GET /models/events`: what happens to models, as server-sent events."""

    def __init__(self, server: ServerContext) -> None:
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tell = partial(self._tell, scope.get("state", {}).get("admin", False))
        await replying(scope, receive, send, tell)

    async def _tell(self, is_admin: bool, body: bytes, reply: Reply) -> None:
        await reply.write(b": models\n\n")
        with reply.kept_awake(self._server.settings.ping_seconds):
            async with aclosing(_events(self._server)) as events:
                async for event in events:
                    shown = msgspec.json.encode(_shown(event, is_admin=is_admin))
                    await reply.write(b"data: " + shown + b"\n\n")
        await reply.end(b"")


def _events(server: ServerContext) -> AsyncGenerator[Any, None]:
    return cast(AsyncGenerator[Any, None], server.models.events())
