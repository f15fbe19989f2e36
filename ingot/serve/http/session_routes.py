"""`/v1/sessions`: sessions of a model, which belong to the key that made them.

A session lives beside its model. Its id begins with a hash of the model's name, so that a server
needs no list of sessions to find the engine that has one.
"""

from __future__ import annotations

import hashlib
import secrets
from contextlib import aclosing
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ingot.errors import UnknownSessionError
from ingot.runtime.unique import unique_id
from ingot.serve.engine import Engine, Job, SessionAsk, SessionFacts
from ingot.serve.http.routes import json, route
from ingot.serve.openai.order import Caller, salt_of
from ingot.serve.openai.requests import CompletionRequest, SessionRequest
from ingot.serve.openai.session_cards import DeletedSession, SessionCard
from ingot.serve.requests.answering import answering, refuse_other_task
from ingot.serve.requests.context import ServerContext

_MARK, _DIGITS = "sess", 8


def session_routes(server: ServerContext) -> list[Route]:
    """Routes that make, show, fork and delete sessions."""
    return [
        route(server, "POST", "/v1/sessions", _make),
        route(server, "GET", "/v1/sessions/{id}", _show),
        route(server, "DELETE", "/v1/sessions/{id}", _delete),
        route(server, "POST", "/v1/sessions/{id}/fork", _fork),
    ]


async def _make(server: ServerContext, request: Request) -> Response:
    asked = await server.decode(await request.body() or b"{}", SessionRequest)
    model, key = server.named(asked.model), _key(request)
    name = _new_id(server.models.name_of(model))
    async with server.lease(model) as engine:
        refuse_other_task(engine.facts, model)
        salt = salt_of(key, asked.cache_salt or "")
        await _told(engine, SessionAsk(id=name, owner=key, do="open"), salt=salt)
    try:
        if asked.prompt is not None:
            await _feed(server, asked, model, name, key)
        async with server.lease(model) as engine:
            facts = await _told(engine, SessionAsk(id=name, owner=key, do="look"))
    except BaseException:
        async with server.lease(model) as engine:
            await _told(engine, SessionAsk(id=name, owner=key, do="close"))
        raise
    return json(_card(facts, model), 201)


async def _feed(
    server: ServerContext, asked: SessionRequest, model: str, name: str, key: str
) -> None:
    """Feeds a session its prompt, as a request that draws nothing."""
    assert asked.prompt is not None
    fed = CompletionRequest(
        model=model,
        prompt=cast(Any, asked.prompt),
        max_tokens=0,
        add_special_tokens=asked.add_special_tokens,
        session_id=name,
    )
    body = f"{name}{asked.prompt}".encode(errors="replace")
    async with answering(server, fed, key, body) as run:
        async for _ in run.steps:
            pass


async def _show(server: ServerContext, request: Request) -> Response:
    return json(await _asked(server, request, "look"))


async def _delete(server: ServerContext, request: Request) -> Response:
    card = await _asked(server, request, "close")
    return json(DeletedSession(id=card.id))


async def _fork(server: ServerContext, request: Request) -> Response:
    return json(await _asked(server, request, "fork"), 201)


async def _asked(server: ServerContext, request: Request, do: Any) -> SessionCard:
    """Asks the engine that has the session of a path. Raises UnknownSessionError."""
    session_id, key = request.path_params["id"], _key(request)
    model = _model_of(server, session_id)
    ask = SessionAsk(id=session_id, owner=key, do=do)
    if do == "fork":
        ask = SessionAsk(id=_new_id(model), owner=key, do=do, source=session_id)
    async with server.lease(model) as engine:
        return _card(await _told(engine, ask), model)


async def _told(engine: Engine, ask: SessionAsk, salt: str = "") -> SessionFacts:
    job = Job(id=Caller(unique_id()).request_id, token_ids=[], session=ask, salt=salt)
    async with aclosing(cast(Any, engine.ask(job))) as steps:
        async for progress in steps:
            if progress.session is not None:
                return cast(SessionFacts, progress.session)
    raise UnknownSessionError(f"there is no session {ask.id[:80]!r}")


def _card(facts: SessionFacts, model: str) -> SessionCard:
    return SessionCard(
        id=facts.id,
        model=model,
        created=facts.created,
        tokens=facts.num_tokens,
        pending=facts.num_pending,
        bytes=facts.nbytes,
        idle_seconds=facts.idle_seconds,
    )


def _key(request: Request) -> str:
    return str(request.scope.get("state", {}).get("key", ""))


def _new_id(model: str) -> str:
    return f"{_MARK}-{_digest(model)}-{secrets.token_hex(16)}"


def _digest(model: str) -> str:
    return hashlib.sha256(model.encode()).hexdigest()[:_DIGITS]


def _model_of(server: ServerContext, session_id: str) -> str:
    mark, _, rest = session_id.partition("-")
    for status in server.models.status():
        if mark == _MARK and rest.startswith(_digest(status.name)):
            return str(status.name)
    raise UnknownSessionError(
        f"there is no session {session_id[:80]!r}", hint="POST /v1/sessions makes one."
    )
