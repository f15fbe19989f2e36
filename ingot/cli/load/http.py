"""A client of HTTP/1.1 that costs little: one answer at a time, read as it comes."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, cast
from urllib.parse import urlsplit

from ingot.errors import UsageError

MAX_HEAD = 65536  # bytes


class Address(NamedTuple):
    """Address of a server; `path` comes before those of its routes."""

    host: str
    port: int
    path: str
    tls: ssl.SSLContext | None

    @classmethod
    def of(cls, url: str, *, insecure: bool = False) -> Address:
        """The address that an URL names. Raises UsageError for one that is no `http(s)://HOST`."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise UsageError(f"--base-url is {url!r}: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(
                f"--base-url is {url!r}", hint="Write one such as http://127.0.0.1:8000."
            )
        tls = None
        if parts.scheme == "https":
            tls = ssl.create_default_context()
            if insecure:
                tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        return cls(parts.hostname, port or (443 if tls else 80), parts.path.rstrip("/"), tls)

    @property
    def authority(self) -> str:
        """Host and port as the header `Host` has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def request_bytes(
    address: Address, method: str, path: str, headers: Mapping[str, str], body: bytes
) -> bytes:
    """A request as it is sent."""
    lines = [f"{method} {address.path}{path} HTTP/1.1", f"Host: {address.authority}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join((*lines, "", "")).encode() + body


@dataclass(slots=True)
class ResponseHead:
    """The first lines of an answer. `length` is None where the body ends by itself."""

    status: int
    length: int | None
    chunked: bool
    keeps_alive: bool


def parse_head(data: bytes) -> ResponseHead:
    """The head of an answer. Raises ConnectionError for what is no HTTP/1.1."""
    first, *lines = data.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
        raise ConnectionError(f"the answer is no HTTP/1.1: {first[:80]!r}")
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip().lower() for name, _, value in pairs}
    length = headers.get("content-length", "")
    return ResponseHead(
        status=int(rest[:3]),
        length=int(length) if length.isdigit() else None,
        chunked="chunked" in headers.get("transfer-encoding", ""),
        keeps_alive=headers.get("connection") != "close" and version != "HTTP/1.0",
    )


class BodyReader:
    """Takes the bytes of an answer as they come and gives those of its body."""

    def __init__(self) -> None:
        self.head: ResponseHead | None = None
        self.done = False
        self._rest = b""
        self._left = 0  # of the chunk or the body
        self._in_chunk = False
        self._in_trailer = False

    @property
    def has_begun(self) -> bool:
        """Tells whether a byte of the answer is there."""
        return self.head is not None or bool(self._rest)

    def feed(self, data: bytes) -> bytes:
        """Takes bytes; returns what they add to the body. Raises ConnectionError if no HTTP/1.1."""
        if self.head is None:
            self._rest += data
            head, found, data = self._rest.partition(b"\r\n\r\n")
            if not found:
                if len(self._rest) > MAX_HEAD:
                    raise ConnectionError("the head of the answer does not end")
                return b""
            self.head = parse_head(head)
            self._rest = b""
            self._left = self.head.length or 0
            self.done = not self.head.chunked and self.head.length == 0
        if self.head.chunked:
            return self._chunks(data)
        if self.head.length is not None:
            self._left -= len(data)
            self.done = self._left <= 0
        return data

    def end(self) -> None:
        """The connection has ended. Raises ConnectionError where the answer had not."""
        whole = self.head is not None and not self.head.chunked and self.head.length is None
        if not self.done and not whole and not self._in_trailer:
            raise ConnectionError("the connection ended before the answer")
        self.done = True

    def _chunks(self, data: bytes) -> bytes:
        data, self._rest = self._rest + data, b""
        parts = []
        while data and not self.done:
            if self._in_chunk:
                # Two more bytes end a chunk.
                parts.append(data[: max(self._left - 2, 0)])
                taken = min(self._left, len(data))
                data, self._left = data[taken:], self._left - taken
                self._in_chunk = self._left > 0
                continue
            line, found, rest = data.partition(b"\r\n")
            if not found:
                self._rest = data
                break
            data = rest
            if self._in_trailer:
                self.done = not line
            else:
                self._begin_chunk(line)
        return b"".join(parts)

    def _begin_chunk(self, line: bytes) -> None:
        try:
            size = int(line.partition(b";")[0], 16)
        except ValueError:
            raise ConnectionError(f"the answer has no size of a chunk: {line[:20]!r}") from None
        self._left, self._in_chunk, self._in_trailer = size + 2, size > 0, size == 0


class Connection(asyncio.Protocol):
    """One connection to a server, for one request after the other."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._transport: asyncio.Transport | None = None
        self._reader = BodyReader()
        self._take: Callable[[bytes], None] | None = None
        self._done: asyncio.Future[None] | None = None

    async def ask(self, request: bytes, take: Callable[[bytes], None]) -> ResponseHead:
        """Sends a request and hands on its answer's body, piece by piece, until it has ended.

        A server may close a connection after any answer, which may be seen only once the next
        request is sent. That request is sent once more, on a new connection.

        Raises OSError, such as ConnectionError, where no whole answer comes.
        """
        has_answered = self._is_open
        try:
            return await self._exchange(request, take)
        except ConnectionError:
            if not has_answered or self._reader.has_begun:
                raise
        return await self._exchange(request, take)

    async def _exchange(self, request: bytes, take: Callable[[bytes], None]) -> ResponseHead:
        loop = asyncio.get_running_loop()
        if not self._is_open:
            host, port, _, tls = self._address
            await loop.create_connection(lambda: self, host, port, ssl=tls)
        assert self._transport is not None
        self._reader, self._take, self._done = BodyReader(), take, loop.create_future()
        self._transport.write(request)
        try:
            await self._done
        except BaseException:
            self.close()
            raise
        head = self._reader.head
        assert head is not None
        if not head.keeps_alive:
            self.close()
        return head

    @property
    def _is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def status(self) -> int:
        """Status of the answer that is being read; 0 before its head is there."""
        return self._reader.head.status if self._reader.head else 0

    def close(self) -> None:
        """Ends the connection. May be called twice."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is of no such class

    def data_received(self, data: bytes) -> None:
        if self._done is None or self._done.done() or self._take is None:
            return self.close()  # nobody has asked
        try:
            body = self._reader.feed(data)
            if body:
                self._take(body)
        except Exception as error:
            self._done.set_exception(error)
            return
        if self._reader.done:
            self._done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._done is None or self._done.done():
            return
        with suppress(ConnectionError):
            self._reader.end()
            self._done.set_result(None)
            return
        self._done.set_exception(exc or ConnectionError("the connection ended before the answer"))
