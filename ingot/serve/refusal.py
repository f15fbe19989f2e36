"""`Refusal`: an error that a client gets to see, in the shape that OpenAI's API gives errors.

Its text comes from this project alone: never from an exception of another library, and with no path
or address in it.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

from ingot.errors import IngotError, QueueFullError

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Refusal(IngotError):
    """A request that is answered with an error.

    Args:
        found: what was found and what is allowed, for the client.
        param: the field of the request that is at fault.
        retry_after: seconds after which the client may try again; 0: it is not told.
    """

    status: int = 400
    kind: str = "invalid_request_error"
    code: str = "invalid_value"
    retry: bool | None = False  # None: as the client thinks best of the status

    def __init__(
        self, found: str, *, hint: str = "", param: str | None = None, retry_after: float = 0.0
    ) -> None:
        super().__init__(found, hint=hint)
        self.param = param
        self.retry_after = retry_after

    def body(self) -> bytes:
        """The answer's body."""
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Headers of the answer besides its length."""
        headers = [(b"content-type", b"application/json")]
        if self.retry_after:
            headers.append((b"retry-after", b"%d" % math.ceil(self.retry_after)))
        if self.retry is not None:
            headers.append((b"x-should-retry", b"true" if self.retry else b"false"))
        if self.status == 401:  # browsers ask for a password, which is the key, and send it along
            headers.append((b"www-authenticate", b'Bearer realm="ingot"'))
            headers.append((b"www-authenticate", b'Basic realm="ingot", charset="UTF-8"'))
        return headers


class BadKey(Refusal):
    """No key, or one that the file does not list."""

    status, kind, code = 401, "authentication_error", "invalid_api_key"


class Forbidden(Refusal):
    """A key without the scope that the route needs, or a page of another site."""

    status, kind, code = 403, "permission_error", "not_permitted"


class MalformedRequest(Refusal):
    """Bytes that are no HTTP request, or one that could be read in two ways."""

    code = "malformed_request"


class WrongMethod(Refusal):
    """A path with a method that it does not take; `allow` lists those that it does."""

    status, code, retry = 405, "method_not_allowed", None

    def __init__(self, found: str, *, allow: str = "", **options: Any) -> None:
        super().__init__(found, **options)
        self.allow = allow

    def headers(self) -> list[tuple[bytes, bytes]]:
        return [*super().headers(), (b"allow", self.allow.encode())]


def wrong_method(path: str, method: str, allow: str) -> WrongMethod:
    """The refusal of a method on a path that takes those that `allow` lists."""
    found = f"{path[:200]} does not take {method[:20]}"
    return WrongMethod(found, hint=f"Supported: {allow}.", allow=allow)


class BodyTooLarge(Refusal):
    """A body with more bytes, or in more pieces, than are allowed."""

    status, code = 413, "body_too_large"


class HeadersTooLarge(Refusal):
    """Headers with more bytes or lines than are allowed."""

    status, code = 431, "headers_too_large"


class SlowRequest(Refusal):
    """Headers or a body that took longer to arrive than is allowed."""

    status, code, retry = 408, "request_too_slow", None


class QueueFull(Refusal, QueueFullError):
    """Refusal of a request when the queue is full."""

    status, kind, code, retry = 429, "rate_limit_error", "queue_full", True


class QueueTimeout(QueueFull):
    """A request that waited for its turn longer than it may."""

    code = "queue_timeout"


class RequestTimeout(Refusal):
    """A request that took longer than it may. It would again."""

    status, kind, code = 504, "server_error", "request_timeout"


class Draining(Refusal):
    """A server that is about to end."""

    status, kind, code, retry = 503, "service_unavailable", "draining", True


class Loading(Refusal):
    """A model that did not load while the request could wait for it; it goes on loading."""

    status, kind, code, retry = 503, "service_unavailable", "loading", True


class InternalRefusal(Refusal):
    """A fault of ours: the log has the rest, under the request's id."""

    status, kind, code, retry = 500, "server_error", "internal", None


async def send_refusal(send: Send, refusal: Refusal, *headers: tuple[bytes, bytes]) -> None:
    """Answers an ASGI request with a refusal."""
    body = refusal.body()
    length = (b"content-length", b"%d" % len(body))
    start = {
        "type": "http.response.start",
        "status": refusal.status,
        "headers": [*refusal.headers(), length, *headers],
    }
    await send(start)
    await send({"type": "http.response.body", "body": body})
