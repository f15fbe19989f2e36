"""The client of HTTP reads what Python's own reads, however the bytes are cut."""

from __future__ import annotations

import http.client
import io
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingot.cli.load.http import Address, BodyReader, request_bytes
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
        if reader.done:  # of a chunked one, all but the last line break is there
            assert framing is chunked and length >= len(whole) - 4
            continue
        with pytest.raises(ConnectionError, match="ended before"):
            reader.end()


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
