"""Limits on a connection: bytes, lines, pieces and time, over raw sockets."""

from __future__ import annotations

import asyncio
import socket
from unittest import mock

import pytest
from uvicorn.server import ServerState

from ingot.serve.edge.server import config_of
from ingot.serve.edge.settings import EdgeSettings
from tests.serve.edge.edge_server import LOCAL, error_of, read_all, serving, status_of, with_limits

HEAD = b"POST /echo HTTP/1.1\r\nhost: 127.0.0.1\r\n"
CLOSE = b"connection: close\r\n"


def ask(data: bytes, **limits) -> bytes:
    async def main() -> bytes:
        async with serving(with_limits(**limits)) as served:
            answer = await served.raw(data)
            assert status_of(await served.raw(HEAD + CLOSE + b"\r\n")) == 200  # the server goes on
            return answer

    return asyncio.run(main())


@pytest.fixture(scope="module")
def answer_to():
    """Asks one server, whose bodies have at most 50,000 bytes in 10 pieces."""
    limits = with_limits(body_bytes=50_000, body_chunks=10)
    with asyncio.Runner() as runner:
        context = serving(limits)
        served = runner.run(context.__aenter__())
        yield lambda data: runner.run(served.raw(data))
        runner.run(context.__aexit__(None, None, None))


CASES = {
    "no HTTP": (b"hello\r\n\r\n", 400, "malformed_request"),
    "NUL bytes": (b"\0" * 100 + b"\r\n\r\n", 400, "malformed_request"),
    "preface of HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "malformed_request"),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "malformed_request"),
    "no target": (b"GET  HTTP/1.1\r\n\r\n", 400, "malformed_request"),
    "target in Latin-1": (b"GET /\xe9 HTTP/1.1\r\n\r\n", 400, "malformed_request"),
    "length and chunks": (
        HEAD + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
        "malformed_request",
    ),
    "chunks and length": (
        HEAD + b"transfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n",
        400,
        "malformed_request",
    ),
    "two lengths": (
        HEAD + b"content-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
        400,
        "malformed_request",
    ),
    "negative length": (HEAD + b"content-length: -3\r\n\r\n", 400, "malformed_request"),
    "length with a sign": (HEAD + b"content-length: +3\r\n\r\nabc", 400, "malformed_request"),
    "folded header": (HEAD + b"x: a\r\n b\r\n\r\n", 400, "malformed_request"),
    "space before colon": (HEAD + b"content-length : 3\r\n\r\nabc", 400, "malformed_request"),
    "bad chunk": (
        HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
        400,
        "malformed_request",
    ),
    "declared gigabyte": (HEAD + b"content-length: 1000000000\r\n\r\n", 413, "body_too_large"),
    "length of 30 digits": (
        HEAD + b"content-length: " + b"9" * 30 + b"\r\n\r\n",
        400,
        "malformed_request",
    ),
    "large body": (
        HEAD + b"transfer-encoding: chunked\r\n\r\n" + b"ffff\r\n" + b"a" * 65535 + b"\r\n",
        413,
        "body_too_large",
    ),
    "many pieces": (
        HEAD + b"transfer-encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 11,
        413,
        "body_too_large",
    ),
    "large header": (HEAD + b"x: " + b"a" * 70_000 + b"\r\n\r\n", 431, "headers_too_large"),
    "endless header": (HEAD + b"x: " + b"a" * 400_000, 431, "headers_too_large"),
    "long target": (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", 431, "headers_too_large"),
    "long names": (HEAD + (b"x" * 800 + b":\r\n") * 90 + b"\r\n", 431, "headers_too_large"),
    "many headers": (HEAD + b"x: y\r\n" * 101 + b"\r\n", 431, "headers_too_large"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_no_request_or_too_large_is_refused(name, answer_to):
    data, status, code = CASES[name]
    answer = answer_to(data)
    assert (status_of(answer), error_of(answer)["code"]) == (status, code)
    assert b"connection: close" in answer
    assert status_of(answer_to(HEAD + CLOSE + b"\r\n")) == 200  # the server goes on


def test_as_many_headers_and_bytes_as_are_allowed_pass(answer_to):
    lines = b"x: y\r\n" * 97
    body = b"a" * 50_000
    answer = answer_to(HEAD + CLOSE + lines + b"content-length: 50000\r\n\r\n" + body)
    assert status_of(answer) == 200 and answer.endswith(b"\r\n\r\n50000")


def test_a_body_of_many_reads_passes():
    body = b"a" * 5_000_000
    answer = ask(HEAD + CLOSE + b"content-length: 5000000\r\n\r\n" + body)
    assert status_of(answer) == 200 and answer.endswith(b"\r\n\r\n5000000")


def test_each_body_of_a_connection_may_have_as_many_pieces_as_are_allowed(answer_to):
    body = b"transfer-encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 9 + b"0\r\n\r\n"
    answer = answer_to(HEAD + body + HEAD + CLOSE + body)
    assert answer.count(b" 200 OK\r\n") == 2
    assert answer.endswith(b"9")


@pytest.mark.thorough
def test_notes_on_pieces_count_as_bytes_of_the_body():
    """A chunk may carry notes, which no part of the body counts."""

    async def main() -> bytes:
        async with serving(with_limits(body_bytes=10_000)) as served:
            reader, writer = await asyncio.open_connection(LOCAL, served.port)
            writer.write(HEAD + b"transfer-encoding: chunked\r\n\r\n1;")
            await writer.drain()
            writer.write(b"a" * 1_000_000)
            answer = await read_all(reader)
            writer.close()
            return answer

    assert status_of(asyncio.run(main())) == 413


def test_trailers_are_not_headers(answer_to):
    body = b"1\r\na\r\n0\r\nx-request-id: late\r\n\r\n"
    answer = answer_to(HEAD + CLOSE + b"transfer-encoding: chunked\r\n\r\n" + body)
    assert status_of(answer) == 200 and b"late" not in answer


@pytest.mark.thorough
def test_a_client_that_sends_nothing_is_let_go_without_an_answer():
    assert ask(b"", header_timeout=0.05) == b""


def test_headers_that_do_not_end_time_out():
    answer = ask(b"GET / HTTP/1.1\r\nhost:", header_timeout=0.05)
    assert (status_of(answer), error_of(answer)["code"]) == (408, "request_too_slow")


def test_a_body_that_the_server_does_not_read_is_not_late():
    async def main() -> None:
        async def app(scope, receive, send) -> None:
            await asyncio.Event().wait()

        config = config_of(app, EdgeSettings())
        config.load()
        protocol = config.http_protocol_class(
            config=config, server_state=ServerState(), app_state={}
        )
        transport = mock.Mock()
        transport.get_extra_info.return_value = None
        transport.is_closing.return_value = False
        transport.get_write_buffer_size.return_value = 0
        protocol.connection_made(transport)
        protocol.data_received(HEAD + b"content-length: 5\r\n\r\nab")
        protocol.flow.pause_reading()
        protocol._body_late()
        await asyncio.sleep(0)
        assert not transport.write.called
        protocol.flow.resume_reading()
        protocol._body_late()
        ((answer,), _) = transport.write.call_args
        assert status_of(answer) == 408
        protocol.connection_lost(None)

    asyncio.run(main())


def test_the_second_request_of_a_connection_has_a_limit_of_time_too():
    answer = ask(HEAD + b"\r\n" + b"GET / HT", header_timeout=0.05)
    assert answer.count(b"HTTP/1.1 200") == 1 and answer.count(b"HTTP/1.1 408") == 1


def test_a_body_that_does_not_end_times_out():
    answer = ask(HEAD + b"content-length: 5\r\n\r\nab", body_timeout=0.05)
    assert (status_of(answer), error_of(answer)["code"]) == (408, "request_too_slow")


@pytest.mark.thorough
def test_an_idle_connection_is_closed_after_the_keep_alive():
    answer = ask(HEAD + b"\r\n", connection_keep_alive=0.05)
    assert status_of(answer) == 200


OLD_LINES = (b"", b"connection: keep-alive\r\n", b"expect: 100-continue\r\ncontent-length: 0\r\n")


@pytest.mark.parametrize("version", [b"1.0", b"0.9"])
@pytest.mark.parametrize("line", OLD_LINES, ids=["plain", "keep-alive", "expecting"])
def test_an_old_client_gets_no_chunks_and_the_end_of_its_connection(version, line, answer_to):
    answer = answer_to(b"GET /flood HTTP/" + version + b"\r\nhost: 127.0.0.1\r\n" + line + b"\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert status_of(answer) == 200 and b"connection: close" in head
    assert b"transfer-encoding" not in head and body == b"x" * len(body) != b""
    echoed = answer_to(b"POST /echo HTTP/" + version + b"\r\nhost: 127.0.0.1\r\n" + line + b"\r\n")
    assert status_of(echoed) == 200  # it knows no answer of 100 before that
    assert b"content-length: 1" in echoed and echoed.endswith(b"\r\n\r\n0")


def test_requests_sent_ahead_are_answered_in_order(answer_to):
    one = HEAD + b"content-length: 1\r\n\r\na"
    two = HEAD + b"content-length: 2\r\n\r\naa"
    last = HEAD + CLOSE + b"content-length: 3\r\n\r\naaa"
    answer = answer_to(one + two + last)
    bodies = [part.rpartition(b"\r\n")[2] for part in answer.split(b"HTTP/1.1 200 OK")[1:]]
    assert [body[-1:] for body in bodies] == [b"1", b"2", b"3"]


def test_too_many_requests_sent_ahead_end_the_connection():
    async def main() -> None:
        async with serving(with_limits(pipelined=4)) as served:
            hold = b"GET /hold HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
            assert await served.raw(hold * 10) == b""

    asyncio.run(main())


@pytest.mark.parametrize(("ahead", "num_answers"), [(4, 5), (5, 0)])
def test_so_many_requests_are_sent_ahead_and_no_more(ahead, num_answers):
    last = HEAD + CLOSE + b"\r\n"
    answer = ask((HEAD + b"\r\n") * ahead + last, pipelined=4)
    assert answer.count(b"HTTP/1.1 200 OK") == num_answers


def test_a_refusal_is_no_answer_to_the_request_before():
    hold = b"GET /hold HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    large = HEAD + b"transfer-encoding: chunked\r\n\r\nff\r\n" + b"a" * 255
    assert ask(hold + large, body_bytes=100) == b""
    assert status_of(ask(large, body_bytes=100)) == 413


def test_a_client_that_does_not_read_is_cut_off():
    """The send buffer is bounded, and a client that leaves it full for too long loses its
    connection, while others are served."""

    async def main() -> None:
        async with serving(with_limits(write_timeout=0.2)) as served:
            slow = socket.socket()
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(slow, (LOCAL, served.port))
            await loop.sock_sendall(slow, b"GET /flood HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
            await served.app.began.wait()
            assert status_of(await served.raw(HEAD + CLOSE + b"\r\n")) == 200
            await served.app.until_ended("/flood")
            assert served.app.ended.count("/flood") == 1
            slow.close()

    asyncio.run(main())


@pytest.mark.thorough
def test_a_client_that_reads_slowly_gets_everything():
    async def main() -> None:
        async with serving(with_limits(write_timeout=5)) as served:
            reader, writer = await asyncio.open_connection(LOCAL, served.port)
            writer.write(b"GET /flood HTTP/1.1\r\nhost: 127.0.0.1\r\n" + CLOSE + b"\r\n")
            answer = await read_all(reader)
            writer.close()
            assert answer.count(b"x") >= 65_536_000

    asyncio.run(main())
