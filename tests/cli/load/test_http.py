"""The client of HTTP reads what Python's own reads, however the bytes are cut."""

from __future__ import annotations

import asyncio
import http.client
import io
import itertools
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingot.cli.load.http import Address, BodyReader, Connection, request_bytes
from ingot.errors import UsageError

bodies = st.lists(st.binary(min_size=1, max_size=40), max_size=5)
cuts = st.lists(st.integers(0, 400), max_size=6)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def chunked(parts: list[bytes]) -> bytes:
    framed = b"".join(b"%X;note=1\r\n%s\r\n" % (len(part), part) for part in parts)
    return b"HTTP/1.1 200 OK\r\ntransfer-ENCODING:chunked\r\n\r\n" + framed + b"0\r\n\r\n"


def measured(parts: list[bytes]) -> bytes:
    body = b"".join(parts)
    return b"HTTP/1.1 429 Too Many\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def until_the_end(parts: list[bytes]) -> bytes:
    return b"HTTP/1.0 200 OK\r\nServer: x\r\n\r\n" + b"".join(parts)


class OneAnswer:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._data)


def read_by_python(data: bytes) -> tuple[int, bytes]:
    answer = http.client.HTTPResponse(OneAnswer(data))
    answer.begin()
    return answer.status, answer.read()


@pytest.mark.cases(core=1)
@pytest.mark.parametrize("framing", [chunked, measured, until_the_end])
@given(parts=bodies, cuts=cuts)
def test_any_cut_reads_what_python_reads(framing, parts, cuts):
    data = framing(parts)
    reader = BodyReader()
    body = b"".join(reader.feed(piece) for piece in pieces(data, cuts) if not reader.done)
    if framing is until_the_end:
        assert not reader.done
        reader.end()
    assert reader.done and reader.head is not None
    assert (reader.head.status, body) == read_by_python(data)
    assert reader.head.keeps_alive is (framing is not until_the_end)


@pytest.mark.parametrize("framing", [chunked, measured])
def test_an_answer_that_breaks_off_is_an_error(framing):
    whole = framing([b"some", b"body"])
    for length in range(len(whole) - 2):
        reader = BodyReader()
        reader.feed(whole[:length])
        with pytest.raises(ConnectionError, match="ended before"):
            reader.end()


@pytest.mark.parametrize("fields", [b"", b"X-Sum: 1\r\nY: 2\r\n"])
def test_a_chunked_answer_is_over_with_its_last_line_break(fields):
    whole = chunked([b"body"])[:-2] + fields + b"\r\n"
    reader = BodyReader()
    assert reader.feed(whole[:-2]) == b"body" and not reader.done
    assert reader.feed(whole[-2:]) == b"" and reader.done


def test_a_chunked_answer_may_end_with_its_connection():
    reader = BodyReader()
    reader.feed(chunked([b"body"])[:-2])
    reader.end()
    assert reader.done


class Line:
    """A server of one connection after the other, each of which sends what it is told to.

    `says[i]` are the answers of connection i, to one request each, after which it ends.
    """

    def __init__(self, *says: list[bytes]) -> None:
        self._says = [*says]
        self.num_requests = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for data in self._says.pop(0):
            await reader.readuntil(b"\r\n\r\n")
            self.num_requests += 1
            writer.write(data)
        writer.close()


def asked_twice(line: Line) -> list[bytes]:
    """What the body is that comes for each of two requests on one connection of ours."""

    async def ask() -> list[bytes]:
        found = []
        async with await asyncio.start_server(line.serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            address = Address("127.0.0.1", port, "", None)
            with closing(Connection(address)) as connection:
                for _ in range(2):
                    parts: list[bytes] = []
                    await connection.ask(request_bytes(address, "GET", "/", {}, b""), parts.append)
                    found.append(b"".join(parts))
        return found

    return asyncio.run(ask())


@pytest.mark.parametrize("framing", [chunked, measured])
def test_a_request_is_sent_again_where_its_connection_had_ended(framing):
    line = Line([framing([b"one"]), b""], [framing([b"two"])])
    assert asked_twice(line) == [b"one", b"two"] and line.num_requests == 3


@pytest.mark.parametrize(
    ("says", "requests"),
    [
        ([[b""]], 1),  # a new connection has never answered
        ([[measured([b"one"]), measured([b"two"])[:-1]]], 2),  # an answer has begun
        ([[measured([b"one"]), b"H"]], 2),
        ([[measured([b"one"]), b""], [b""]], 3),  # once is enough
    ],
)
def test_no_other_request_is_sent_again(says, requests):
    line = Line(*says)
    with pytest.raises(ConnectionError, match="ended before the answer"):
        asked_twice(line)
    assert line.num_requests == requests


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70000,
    ],
)
def test_what_is_no_http_is_an_error(data):
    with pytest.raises(ConnectionError):
        BodyReader().feed(data)


def test_a_request_is_what_a_server_reads():
    address = Address.of("http://[::1]:80/base/")
    sent = request_bytes(address, "POST", "/v1/x", {"Authorization": "Bearer k"}, b"{}")
    assert sent == (
        b"POST /base/v1/x HTTP/1.1\r\nHost: [::1]:80\r\nAuthorization: Bearer k\r\n"
        b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    )


def test_an_address_has_the_port_of_its_scheme():
    assert Address.of("http://a").port == 80 and Address.of("http://a").tls is None
    secure = Address.of("https://a", insecure=True)
    assert secure.port == 443 and secure.tls is not None and not secure.tls.check_hostname


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://a", "http://", "http://a:x", "http://[a"])
def test_other_addresses_are_refused(url):
    with pytest.raises(UsageError, match="--base-url"):
        Address.of(url)
