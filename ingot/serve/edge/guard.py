"""`Guard`: the ASGI application around the application. Nothing reaches it that may not."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
from collections.abc import Awaitable, Callable, MutableMapping
from functools import lru_cache
from typing import Any, Protocol

from ingot.serve.edge.keys import ADMIN, USE, Key, KeyRing
from ingot.serve.edge.pages import Headers, Pages
from ingot.serve.edge.record import CURRENT, Record, cuttable, plain_path, record_of
from ingot.serve.edge.settings import EdgeSettings
from ingot.serve.refusal import (
    BadKey,
    BodyTooLarge,
    Draining,
    Forbidden,
    InternalRefusal,
    MalformedRequest,
    Refusal,
    send_refusal,
    wrong_method,
)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]
Answer = tuple[int, bytes, str]  # status, body and content type

logger = logging.getLogger("ingot.serve")

LIVE, HEALTH = "/live", "/health"
OIP_LIVE, OIP_READY = "/v2/health/live", "/v2/health/ready"
METRICS, DETAILS = "/metrics", "/health/details"
OWN_PATHS = (METRICS, DETAILS)  # which the server answers itself, and not the application
# What is safe to show, and to paste into a shell.
_PLAIN_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[A-Za-z0-9.:\[\]-]{1,253}", re.ASCII)
_QUIET = {LIVE, HEALTH, OIP_LIVE, OIP_READY, METRICS}  # asked for all the time; not logged
# Probes cannot send a key. To those without one they say no more than whether it is ready.
_PROBED = (HEALTH, OIP_READY)
_ADMIN = "/models/"
_WHILE_DRAINING = {LIVE, OIP_LIVE, METRICS, DETAILS}


class Host(Protocol):
    """Protocol of the server, as far as the guard calls it."""

    settings: EdgeSettings
    keys: KeyRing | None
    draining: bool

    async def own_answer(self, path: str) -> Answer:
        """The answer of one of OWN_PATHS."""

    def opened(self, record: Record) -> None: ...

    def closed(self, record: Record) -> None: ...


def scope_of(method: str, path: str) -> str:
    """The scope that a route needs."""
    return ADMIN if path.startswith(_ADMIN) and method not in ("GET", "HEAD") else USE


class Guard:
    """Checks every request before the application gets it, and logs how it was answered."""

    def __init__(self, app: App, host: Host) -> None:
        self._app = app
        self._host = host
        settings = host.settings
        self._pages = Pages(settings.origins)
        # By its address, as no key guards it and no file: see `_check_site`.
        self._by_address = host.keys is None and settings.is_local and settings.uds is None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no other kind of connection is spoken here
        scope["path"] = plain_path(scope["path"])
        record = record_of(scope)
        record.task = asyncio.current_task()
        headers = dict(scope["headers"])
        exchange = _Exchange(record, receive, send, self._host.settings.limits.body_bytes)
        exchange.headers += self._pages.headers(headers)
        token = CURRENT.set(record)
        self._host.opened(record)
        try:
            with cuttable():
                await self._answer(scope, headers, record, exchange)
        except Exception as error:
            await _apologize(error, record, exchange)
        finally:
            CURRENT.reset(token)
            self._host.closed(record)
            if record.path not in _QUIET:
                log_request(record)

    async def _answer(
        self, scope: Message, headers: dict[bytes, bytes], record: Record, exchange: _Exchange
    ) -> None:
        preflight = self._pages.preflight(record.method, headers)
        if preflight is not None:  # browsers send no key with it
            await _send_nothing(exchange.send, preflight)
            return
        if record.path not in (LIVE, OIP_LIVE):
            self._note_key(scope, headers, record)
        if self._host.draining and record.path not in _WHILE_DRAINING:
            raise Draining("the server is about to end", retry_after=1)
        exchange.check_length(headers)
        if record.path in OWN_PATHS:
            if record.method not in ("GET", "HEAD"):
                raise wrong_method(record.path, record.method, "GET, HEAD")
            await _send(exchange.send, *await self._host.own_answer(record.path))
            return
        state = scope.setdefault("state", {})
        state |= {
            "request_id": record.request_id,
            "key": record.key,
            "admin": record.admin,
            "anonymous": record.anonymous,
        }
        await self._app(scope, exchange.receive, exchange.send)
        record.error = state.get("error")  # of a refusal that the application has sent

    def _note_key(self, scope: Message, headers: dict[bytes, bytes], record: Record) -> None:
        """Notes whose a request is. Raises BadKey and Forbidden for what may not be done."""
        settings = self._host.settings
        try:
            key = self._key(scope, headers)
        except BadKey:
            if record.path not in _PROBED:
                raise
            record.anonymous = not settings.open_health
            return
        record.key = key.name if key else ""
        record.admin = key.permits(ADMIN) if key else settings.admin_without_key

    def _key(self, scope: Message, headers: dict[bytes, bytes]) -> Key | None:
        """Key of a request. Raises BadKey and Forbidden for what may not be done."""
        settings = self._host.settings
        self._check_site(headers)
        wanted = scope_of(scope["method"], scope["path"])
        if self._host.keys is None:
            if wanted == ADMIN and not settings.admin_without_key:
                raise Forbidden(
                    "models are loaded and unloaded with a key of the scope admin, and this "
                    "server has no keys",
                    hint="Start it with --api-key-file, or with --uds, or with --open-admin.",
                )
            return None
        key = self._host.keys.find(headers.get(b"authorization", b""))
        if key is None:
            raise BadKey(
                "the API key is missing or wrong", hint="Send it as `Authorization: Bearer KEY`."
            )
        if not key.permits(wanted):
            raise Forbidden(f"this needs a key of the scope {wanted}")
        return key

    def _check_site(self, headers: dict[bytes, bytes]) -> None:
        """Refuses what a page of another site has a browser send. Raises Forbidden.

        Where no key guards a local server, it has to be called by its address: a page of another
        site can have its own name point to that address.
        """
        host = headers.get(b"host", b"").decode("latin-1")
        origin = headers.get(b"origin", b"").decode("latin-1")
        if origin and origin.partition("://")[2] != host and not self._pages.allow(origin):
            raise Forbidden(
                "pages of other sites may not call this server",
                hint=f"Start it with --allow-origin {_shown(origin)}",
            )
        if self._by_address and host and not _is_address(host):
            raise Forbidden(
                "without keys, the server is called by its address or as localhost",
                hint="Use http://127.0.0.1 with its port, or start the server with --api-key-file.",
            )


class _Exchange:
    """The two directions of a request, watched."""

    def __init__(self, record: Record, receive: Receive, send: Send, most: int) -> None:
        self._record = record
        self._receive = receive
        self._send = send
        self._most = most
        self._left = most
        self.headers: Headers = [(b"x-request-id", record.request_id.encode())]

    def check_length(self, headers: dict[bytes, bytes]) -> None:
        """Raises Refusal for a body that says that it is too large."""
        length = headers.get(b"content-length", b"0")
        if not length.isdigit():
            raise MalformedRequest("the header Content-Length is no number")
        if len(length) > 18 or int(length) > self._most:
            raise self._too_large()

    async def receive(self) -> Message:
        """Gives the next part of the body. Raises BodyTooLarge."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._record.disconnected = True
        else:
            self._left -= len(message.get("body", b""))
            if self._left < 0:
                raise self._too_large()
        return message

    async def send(self, message: Message) -> None:
        """Sends a part of the answer; `headers`, with the request's id, go along with its own."""
        if message["type"] == "http.response.start":
            self._record.status = message["status"]
            message["headers"] = [*message.get("headers", ()), *self.headers]
        elif not message.get("more_body"):
            self._record.complete = True
        await self._send(message)

    def _too_large(self) -> Refusal:
        return BodyTooLarge(f"the body is larger than {self._most} bytes")


def _shown(origin: str) -> str:
    """An origin as the option takes it; of what is none, or of no one page, what to write."""
    return f"{origin}." if _PLAIN_ORIGIN.fullmatch(origin) else "ORIGIN, with that of the page."


@lru_cache(64)
def _is_address(host: str) -> bool:
    name = re.sub(r":\d+$", "", host, flags=re.ASCII).strip("[]").lower()
    if name == "localhost":
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


async def _apologize(error: Exception, record: Record, exchange: _Exchange) -> None:
    """Answers with an error, if nothing was sent yet; a fault of ours goes to the log."""
    if isinstance(error, Refusal):
        refusal = error
    else:
        refusal = InternalRefusal(f"an internal error; the log has it as {record.request_id}")
        fields = {"id": record.request_id, "path": record.path}
        logger.error("internal error", exc_info=error, extra={"fields": fields})
    record.error = refusal.code
    if not record.status and not record.disconnected:
        await send_refusal(exchange.send, refusal)


async def _send(send: Send, status: int, body: bytes, content_type: str) -> None:
    headers = [
        (b"content-type", content_type.encode()),
        (b"content-length", b"%d" % len(body)),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _send_nothing(send: Send, headers: Headers) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def log_request(record: Record) -> None:
    fields = {
        "id": record.request_id,
        "key": record.key or None,
        "method": record.method,
        "path": record.path,
        "status": record.logged_status,
        "error": record.error,
        "ms": round(1e3 * record.elapsed, 1),
        **record.fields,
    }
    logger.info("request", extra={"fields": fields})
