"""Context of every call: its key, its record, and the status that an error becomes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import grpc

from ingot.serve.edge.guard import Host, log_request
from ingot.serve.edge.keys import ADMIN, USE
from ingot.serve.edge.record import CURRENT, Record, cuttable, request_id_of
from ingot.serve.refusal import BadKey, Draining, Forbidden, MalformedRequest, Refusal
from ingot.serve.requests.errors import GRPC_STATUSES, refusal_of

LIVE, HEALTH = "/inference.GRPCInferenceService/ServerLive", "/grpc.health.v1.Health/"
# Probes cannot send a key. Without one they are told no more than whether the server is ready.
PROBED = ("/inference.GRPCInferenceService/ServerReady", HEALTH)
REFLECTION = "/grpc.reflection."
# A stream of requests, each of which has a record of its own.
REQUESTS = "/inference.GRPCInferenceService/ModelStreamInfer"
ADMIN_METHODS = tuple(f"/ingot.v1.Models/{name}" for name in ("Load", "Unload", "Reload"))

Handler = Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True)
class CallOrigin:
    """Caller: an id, the client's or ours, and the name of the key ("" without keys)."""

    request_id: str
    key: str = ""


class Aborted(Refusal):
    """A request that was ended on demand."""

    status, code = 499, "aborted"


def current_call() -> CallOrigin:
    """The call that the running task answers."""
    record = CURRENT.get()
    return CallOrigin(record.request_id, record.key) if record else CallOrigin("")


def is_anonymous() -> bool:
    """Returns whether the running task answers somebody without a key, where others have one."""
    record = CURRENT.get()
    return record is not None and record.anonymous


def is_admin() -> bool:
    """Returns whether the running task answers somebody who may administer."""
    record = CURRENT.get()
    return record is not None and record.admin


class CallGuard(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Lets in who has a key for what the method does, and turns errors into statuses."""

    def __init__(self, host: Host) -> None:
        self._host = host

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: Any
    ) -> Any:
        handler = await continuation(details)
        if handler is None:
            return None  # no such method
        metadata = {name: _text(value) for name, value in details.invocation_metadata or ()}
        given = metadata.get("x-request-id", "").encode("latin-1", "replace")
        around = _Around(
            self._host,
            lambda: Record(
                method="gRPC",
                path=details.method,
                request_id=request_id_of(given),
                traceparent=metadata.get("traceparent"),
                awaited=details.method != REQUESTS,
            ),
            metadata.get("authorization", ""),
        )
        if handler.response_streaming:
            return _streaming(handler, around)
        single = grpc.unary_unary_rpc_method_handler
        answer = around.single(handler.unary_unary)
        return single(answer, _reader(handler), handler.response_serializer)


def _streaming(handler: Any, around: _Around) -> Any:
    kinds = (_reader(handler), handler.response_serializer)
    if not handler.request_streaming:
        return grpc.unary_stream_rpc_method_handler(around.stream(handler.unary_stream), *kinds)

    def several(requests: AsyncIterator[Any], context: Any) -> Any:
        return handler.stream_stream(_messages(requests), context)

    return grpc.stream_stream_rpc_method_handler(around.stream(several), *kinds)


def _reader(handler: Any) -> Callable[[bytes], Any]:
    """A deserializer that gives a Refusal of bytes that are no message. One that raises has grpc
    print a traceback, and answer that the server is at fault."""

    def read(data: bytes) -> Any:
        try:
            return handler.request_deserializer(data)
        except Exception:  # each implementation of protobuf has its own
            return MalformedRequest("the bytes received are no message of this method")

    return read


def _message(request: Any) -> Any:
    """A message that was read. Raises the Refusal of one that could not be."""
    if isinstance(request, Refusal):
        raise request
    return request


async def _messages(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for request in requests:
        yield _message(request)


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


class _Around:
    """Wrapper around the calls of one method: checks keys, keeps records and translates errors."""

    def __init__(self, host: Host, record: Callable[[], Record], authorization: str) -> None:
        self._host = host
        self._record = record
        self._authorization = authorization

    def single(self, inner: Handler) -> Handler:
        """A handler that answers once."""

        async def answer(request: Any, context: Any) -> Any:
            with recorded(self._host, self._record()) as record:
                try:
                    with cuttable():
                        self._let_in(record)
                        return await inner(_message(request), context)
                except Exception as error:
                    await _abort(error, record, context)

        return answer

    def stream(self, inner: Handler) -> Handler:
        """A handler that answers with a stream.

        It writes by itself, so that a stream which the client drops is closed here and now.
        """

        async def answer(request: Any, context: Any) -> None:
            with recorded(self._host, self._record()) as record:
                try:
                    with cuttable():
                        self._let_in(record)
                        async with aclosing(inner(_message(request), context)) as messages:
                            async for message in messages:
                                await self._write(message, context)
                except Exception as error:
                    await _abort(error, record, context)

        return answer

    async def _write(self, message: Any, context: Any) -> None:
        """Sends a message. A client that leaves too many unread is dropped."""
        try:
            async with asyncio.timeout(self._host.settings.limits.write_timeout or None):
                await context.write(message)
        except TimeoutError:
            # No status would reach it: that waits behind the messages.
            raise asyncio.CancelledError from None

    def _let_in(self, record: Record) -> None:
        """Notes the key of a call. Raises Refusal."""
        host, path = self._host, record.path
        if path == LIVE:
            return
        scope = ADMIN if path in ADMIN_METHODS else USE
        if host.keys is not None:
            key = host.keys.find(self._authorization.encode("latin-1", "replace"))
            if key is not None:
                if not key.permits(scope):
                    raise Forbidden(f"this needs a key of the scope {scope}")
                record.key = key.name
                record.admin = key.permits(ADMIN)
            elif path.startswith(PROBED):
                record.anonymous = not host.settings.open_health
            else:
                raise BadKey(
                    "the API key is missing or wrong",
                    hint="Send it as metadata: authorization: Bearer KEY.",
                )
        else:
            record.admin = host.settings.of_port.admin_without_key
            if scope == ADMIN and not record.admin:
                raise Forbidden(
                    "models are loaded and unloaded with a key of the scope admin",
                    hint="Start the server with --api-key-file, or with --open-admin.",
                )
        if not path.startswith(HEALTH):
            refuse_draining(host)


@contextmanager
def recorded(host: Host, record: Record) -> Iterator[Record]:
    """Counts and logs what is done inside the block, as HTTP does with its requests."""
    CURRENT.set(record)
    record.task = asyncio.current_task()
    # Probes and reflection may stay open for ever, and no drain waits for them.
    quiet = record.path.startswith((LIVE, HEALTH, REFLECTION))
    if not quiet:
        host.opened(record)
    record.status = 200
    try:
        yield record
        record.complete = True
    except asyncio.CancelledError:
        record.disconnected = True
        raise
    finally:
        if not quiet:
            host.closed(record)
            log_request(record)


def part_of_stream(number: int) -> Record:
    """The record of a request that came, as the number says, in the stream that is answered."""
    stream = CURRENT.get()
    assert stream is not None, "a stream has a record"
    return replace(
        stream,
        request_id=f"{stream.request_id}-{number}",
        began=perf_counter(),
        awaited=True,
        fields={},
    )


def refuse_draining(host: Host) -> None:
    """Raises Draining where the server takes nothing new."""
    if host.draining:
        raise Draining("the server is about to end", retry_after=1)


async def _abort(error: Exception, record: Record, context: Any) -> None:
    """Ends a call with the status of an error."""
    if isinstance(error, grpc.aio.AbortError):
        raise error
    refusal = noted(error, record)
    status = grpc.StatusCode[GRPC_STATUSES.get(refusal.status, "INTERNAL")]
    await context.abort(status, str(refusal), trailing(refusal, record))


def noted(error: Exception, record: Record) -> Refusal:
    """Refusal that the client gets for an error, noted in its record."""
    refusal = refusal_of(error, record.request_id)
    record.status, record.error = refusal.status, refusal.code
    return refusal


def trailing(refusal: Refusal, record: Record) -> Sequence[tuple[str, str]]:
    """Trailing metadata of a status: HTTP's code, the field at fault, and when to try again."""
    found = [("x-request-id", record.request_id), ("ingot-code", refusal.code)]
    if refusal.param:
        # Metadata is ASCII that can be printed, and a client may name its tensors as it likes.
        found.append(("ingot-param", refusal.param.encode("unicode_escape").decode()))
    if refusal.retry_after:
        found.append(("grpc-retry-pushback-ms", str(round(refusal.retry_after * 1000))))
    elif refusal.retry is False:
        found.append(("grpc-retry-pushback-ms", "-1"))  # never
    return tuple(found)
