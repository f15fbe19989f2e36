"""What surrounds every call: whose key it has, its id, and the status that an error becomes."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import grpc

from ingot.serve.edge.keys import ADMIN, USE, KeyRing
from ingot.serve.http.errors import refusal_of
from ingot.serve.refusal import BadKey, Draining, Forbidden, Refusal

# Services that tell what there is, and whether it lives, need no key.
OPEN = ("/grpc.health.v1.Health/", "/inference.GRPCInferenceService/ServerLive")
ADMIN_METHODS = tuple(f"/ingot.v1.Models/{name}" for name in ("Load", "Unload", "Reload"))
STATUSES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.FAILED_PRECONDITION,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    499: grpc.StatusCode.CANCELLED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}

Handler = Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True)
class Call:
    """Who calls: an id, the client's or ours, and the name of the key ("" without keys)."""

    request_id: str
    key: str = ""


CALL: ContextVar[Call] = ContextVar("call")


class Aborted(Refusal):
    """A request that was ended on demand."""

    status, code = 499, "aborted"


class Guard(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Lets in who has a key for what the method does, and turns errors into statuses."""

    def __init__(
        self,
        keys: KeyRing | None,
        *,
        admin_without_key: bool = False,
        is_draining: Callable[[], bool] = lambda: False,
    ) -> None:
        self._keys = keys
        self._admin_without_key = admin_without_key
        self._is_draining = is_draining

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: Any
    ) -> Any:
        handler = await continuation(details)
        if handler is None:
            return None  # no such method
        method: str = details.method
        metadata = dict(details.invocation_metadata or ())
        refusal = None
        call = Call(_text(metadata.get("x-request-id")) or uuid.uuid4().hex)
        if not method.startswith(OPEN):
            try:
                call = Call(call.request_id, self._key_of(method, metadata))
            except Refusal as found:
                refusal = found
        return _wrapped(handler, call, refusal)

    def _key_of(self, method: str, metadata: dict[str, Any]) -> str:
        """The name of the key that a call has. Raises Refusal."""
        if self._is_draining():
            raise Draining("the server is about to end", retry_after=1.0)
        scope = ADMIN if method.startswith(ADMIN_METHODS) else USE
        if self._keys is None:
            if scope == ADMIN and not self._admin_without_key:
                raise Forbidden(f"{method} needs a key with the scope admin")
            return ""
        key = self._keys.find(_text(metadata.get("authorization")).encode())
        if key is None:
            raise BadKey("no valid key", hint="Send it as metadata: authorization: Bearer KEY.")
        if not key.permits(scope):
            raise Forbidden(f"this key may not call {method}")
        return key.name


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value or "")


def _wrapped(handler: Any, call: Call, refusal: Refusal | None) -> Any:
    """The handler inside what every call has around it."""
    if handler.response_streaming:
        inner = handler.stream_stream if handler.request_streaming else handler.unary_stream
        make = (
            grpc.stream_stream_rpc_method_handler
            if handler.request_streaming
            else grpc.unary_stream_rpc_method_handler
        )
        outer: Handler = _streaming(inner, call, refusal)
    else:
        make = grpc.unary_unary_rpc_method_handler
        outer = _single(handler.unary_unary, call, refusal)
    return make(outer, handler.request_deserializer, handler.response_serializer)


def _single(inner: Handler, call: Call, refusal: Refusal | None) -> Handler:
    async def answer(request: Any, context: Any) -> Any:
        try:
            _enter(call, refusal)
            return await inner(request, context)
        except Exception as error:
            await _abort(error, call, context)

    return answer


def _streaming(inner: Handler, call: Call, refusal: Refusal | None) -> Handler:
    async def answer(request: Any, context: Any) -> AsyncIterator[Any]:
        try:
            _enter(call, refusal)
            async for each in inner(request, context):
                yield each
        except Exception as error:
            await _abort(error, call, context)

    return answer


def _enter(call: Call, refusal: Refusal | None) -> None:
    CALL.set(call)
    if refusal is not None:
        raise refusal


async def _abort(error: Exception, call: Call, context: Any) -> None:
    """Ends a call with the status of an error."""
    if isinstance(error, grpc.aio.AbortError):
        raise error
    refusal = refusal_of(error, call.request_id)
    status = STATUSES.get(refusal.status, grpc.StatusCode.INTERNAL)
    await context.abort(status, str(refusal), trailing(refusal, call))


def trailing(refusal: Refusal, call: Call) -> Sequence[tuple[str, str]]:
    """What comes with a status: HTTP's code, the field at fault, and when to try again."""
    found = [("x-request-id", call.request_id), ("ingot-code", refusal.code)]
    if refusal.param:
        found.append(("ingot-param", refusal.param))
    if refusal.retry_after:
        found.append(("grpc-retry-pushback-ms", str(round(refusal.retry_after * 1000))))
    elif refusal.retry is False:
        found.append(("grpc-retry-pushback-ms", "-1"))  # never
    return tuple(found)
