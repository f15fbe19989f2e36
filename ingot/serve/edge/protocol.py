"""`BoundedProtocol`: HTTP on a connection, within limits that ASGI comes too late for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from ingot.serve.edge.pages import Headers, Pages
from ingot.serve.edge.record import request_id_of
from ingot.serve.edge.settings import ClientLimits
from ingot.serve.refusal import (
    BodyTooLarge,
    HeadersTooLarge,
    MalformedRequest,
    Refusal,
    SlowRequest,
)

_RAW_FACTOR = 3  # bytes on the wire for one of a body, with the sizes and notes of its pieces
_WITHOUT_CHUNKS = ("0.9", "1.0")  # versions of HTTP
_LINGER_SECONDS = 1.0  # that a refused client has to read why, before the connection is cut


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with limits of bytes, lines, pieces and time.

    Every limit that a client breaks ends its connection, after an answer if one can be given: none
    can be where the answer to an earlier request is still under way.
    """

    def __init__(self, *arguments: Any, limits: ClientLimits, pages: Pages, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._pages = pages
        self._limits = limits
        self._begun = False  # whether a part of a request is here, and not all of it
        self._in_headers = True
        self._fresh = False  # whether the request began in the data that is being read
        self._raw_bytes = 0  # of the request, without those of the data in which it began
        self._header_bytes = 0
        self._body_bytes = 0
        self._num_chunks = 0
        self._fault: Refusal | None = None
        self._refused = False
        self._request_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    @classmethod
    def within(cls, limits: ClientLimits, pages: Pages) -> type[asyncio.Protocol]:
        """The protocol as uvicorn takes it: something that makes one for each connection."""
        return cast(type[asyncio.Protocol], partial(cls, limits=limits, pages=pages))

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        joined = cast(asyncio.Transport, JoinedTransport(transport, self.loop))
        super().connection_made(joined)
        transport.set_write_buffer_limits(high=self._limits.send_buffer_bytes)
        self._await_request(self._limits.header_timeout, self._headers_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        if self._write_timer is not None:
            self._write_timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return  # what a refused client still sends
        self._unset_keepalive_if_required()
        self._fresh = False
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self._refuse(self._fault or MalformedRequest("the bytes received are no HTTP request"))
            return
        except httptools.HttpParserUpgrade:
            return  # it is answered in HTTP/1.1
        if not self._begun or self._fresh:
            return
        self._raw_bytes += len(data)
        if self._in_headers and self._raw_bytes > self._limits.header_bytes:
            self._refuse(self._headers_large())
        elif self._raw_bytes > _RAW_FACTOR * self._limits.body_bytes:
            self._refuse(self._body_large())

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._await_request(self._limits.header_timeout, self._headers_late)
        self._begun = self._in_headers = self._fresh = True
        self._raw_bytes = self._header_bytes = self._body_bytes = self._num_chunks = 0

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count_header(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_headers:
            return  # what comes after a chunked body
        super().on_header(name, value)
        self._count_header(len(name) + len(value) + 4)
        if len(self.headers) > self._limits.header_lines:
            most = self._limits.header_lines
            self._break(HeadersTooLarge(f"the request has more than {most} header lines"))

    def on_headers_complete(self) -> None:
        lengths = [value for name, value in self.headers if name == b"content-length"]
        if len(lengths) > 1:
            self._break(MalformedRequest("the request has several lengths"))
        if lengths and (not lengths[0].isdigit() or len(lengths[0]) > 18):
            self._break(MalformedRequest("the header Content-Length is no number"))
        if lengths and int(lengths[0]) > self._limits.body_bytes:
            self._break(self._body_large())
        if len(self.pipeline) >= self._limits.pipelined:
            self._break(MalformedRequest("too many requests were sent ahead of their answers"))
        super().on_headers_complete()
        if self.parser.get_http_version() in _WITHOUT_CHUNKS:
            _end_with_connection(self.cycle)
        self._in_headers = False
        self._await_request(self._limits.body_timeout, self._body_late)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > self._limits.body_bytes:
            self._break(self._body_large())
        super().on_body(body)

    def on_chunk_header(self) -> None:
        """Called by the parser at the beginning of a piece of a chunked body."""
        self._num_chunks += 1
        if self._num_chunks > self._limits.body_chunks:
            most = self._limits.body_chunks
            self._break(BodyTooLarge(f"the body has more than {most} pieces"))

    def on_message_complete(self) -> None:
        self._disarm()
        self._begun, self._in_headers, self._raw_bytes = False, True, 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._begun:
            self._unset_keepalive_if_required()
        if self.transport.is_closing():
            self._await_reader()  # of what is still in the buffer

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None and not self.transport.is_closing():
            self._write_timer.cancel()
            self._write_timer = None

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._await_reader()

    def shutdown(self) -> None:
        if self.transport.is_closing():
            return  # a transport of TLS that is closed twice knows no buffer any more
        super().shutdown()
        if self.transport.is_closing():
            self._await_reader()

    def _count_header(self, count: int) -> None:
        self._header_bytes += count
        if self._header_bytes > self._limits.header_bytes:
            self._break(self._headers_large())

    def _break(self, fault: Refusal) -> None:
        """Ends the parsing from within a call of the parser."""
        self._fault = fault
        raise fault

    def _refuse(self, refusal: Refusal) -> None:
        """Answers with an error if it is this request's turn, and ends the connection."""
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        self._disarm()
        cycle = self.cycle
        idle = cycle is None or cycle.response_complete
        turn = idle if self._in_headers else not cycle.response_started
        if turn and not self.pipeline:
            given = dict(self.headers) if self._begun else {}
            request_id = request_id_of(given.get(b"x-request-id", b""))
            also = [(b"x-request-id", request_id.encode()), *self._pages.headers(given)]
            self.transport.write(_response(refusal, also))
        if not idle:
            cycle.disconnected = True
            cycle.message_event.set()
        # The client may still be sending. It would not see the answer if it were cut off at once.
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._write_timer = self.loop.call_later(_LINGER_SECONDS, self.transport.abort)

    def _headers_late(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._await_request(self._limits.header_timeout, self._headers_late)
        elif self._begun:
            seconds = self._limits.header_timeout
            self._refuse(SlowRequest(f"the headers took longer than {seconds:g} seconds"))
        else:
            self.transport.close()  # a connection on which nothing was asked

    def _body_late(self) -> None:
        if self.flow.read_paused:  # it is we who do not read
            self._await_request(self._limits.body_timeout, self._body_late)
            return
        seconds = self._limits.body_timeout
        self._refuse(SlowRequest(f"the body took longer than {seconds:g} seconds"))

    def _await_request(self, seconds: float, late: Callable[[], None]) -> None:
        self._disarm()
        self._request_timer = self.loop.call_later(seconds, late)

    def _disarm(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def _await_reader(self) -> None:
        """Ends the connection if the client does not read what is in the send buffer."""
        if self._write_timer is None and self.transport.get_write_buffer_size():
            seconds = self._limits.write_timeout
            self._write_timer = self.loop.call_later(seconds, self.transport.abort)

    def _headers_large(self) -> Refusal:
        return HeadersTooLarge(f"the headers have more than {self._limits.header_bytes} bytes")

    def _body_large(self) -> Refusal:
        return BodyTooLarge(f"the body is larger than {self._limits.body_bytes} bytes")


def _end_with_connection(cycle: RequestResponseCycle) -> None:
    """Has a body of unknown length end with its connection, for a client that knows no chunks: the
    sizes of chunks would stand among its text. Source: RFC 9112, 6.1; RFC 9110, 10.1.1."""
    cycle.keep_alive = cycle.waiting_for_100_continue = False
    send, has_length = cycle.send, False

    async def plainly(message: Any) -> None:
        nonlocal has_length
        if message["type"] == "http.response.start":
            has_length = any(name.lower() == b"content-length" for name, _ in message["headers"])
            cycle.chunked_encoding = None if has_length else False
        elif not has_length:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    cycle.send = plainly  # type: ignore[method-assign]


def _response(refusal: Refusal, also: Headers) -> bytes:
    """An answer as it goes over the wire."""
    body = refusal.body()
    status = HTTPStatus(refusal.status)
    lines = [b"HTTP/1.1 %d %s" % (status, status.phrase.encode())]
    lines += [name + b": " + value for name, value in (*refusal.headers(), *also)]
    lines += [b"content-length: %d" % len(body), b"connection: close", b"", body]
    return b"\r\n".join(lines)


class JoinedTransport:
    """Stands before a transport, so that the head of an answer goes out with what follows it.

    Each piece that is sent alone wakes its reader once more.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self._send)
        self._parts.append(data)

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self._parts)) + self._transport.get_write_buffer_size()

    def write_eof(self) -> None:
        self._send()
        self._transport.write_eof()

    def close(self) -> None:
        self._send()
        self._transport.close()

    def abort(self) -> None:
        self._parts.clear()
        self._transport.abort()

    def _send(self) -> None:
        data = b"".join(self._parts)
        self._parts.clear()
        if data and not self._transport.is_closing():  # it may have been lost meanwhile
            self._transport.write(data)
