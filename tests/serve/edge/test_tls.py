"""A server with a certificate, which OpenSSL makes for the test."""

from __future__ import annotations

import asyncio
import logging
import ssl
import subprocess
from pathlib import Path

import grpc
import httpx
import pytest

from ingot.errors import UsageError
from ingot.serve.edge.edge import Edge
from ingot.serve.edge.settings import EdgeSettings
from ingot.serve.grpc.server import GrpcServer, GrpcSettings
from ingot.serve.grpc.stubs import open_inference_pb2 as oip
from ingot.serve.grpc.stubs import open_inference_pb2_grpc
from ingot.serve.requests.context import ServerContext
from tests.serve.edge.edge_server import read_all, serving
from tests.support.fake_engine import FakeModels

SECONDS = 60


def certificate(folder: Path, name: str, *options: str) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 that it has signed itself, and its key."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    names = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(cert)]
    command = ["openssl", "req", "-x509", *kind, "-days", "2", *names, *files]
    subprocess.run([*command, *(options or ["-nodes"])], check=True, capture_output=True)
    return cert, key


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificate(tmp_path_factory.mktemp("tls"), "ours")


def test_who_trusts_the_certificate_is_answered_and_others_leave(pair):
    cert, key = pair

    async def main() -> None:
        async with serving(tls_cert=cert, tls_key=key) as served:
            assert served.edge.address == f"https://127.0.0.1:{served.port}"
            trusting = ssl.create_default_context(cafile=str(cert))
            async with served.client(verify=trusting) as client:
                answer = await client.post("/echo", content=b"x" * 100_000)
                assert (answer.status_code, answer.text) == (200, "100000")
            async with served.client(verify=ssl.create_default_context()) as client:
                with pytest.raises(httpx.ConnectError, match=r"(?i)verify failed"):
                    await client.get("/live")

    asyncio.run(asyncio.wait_for(main(), SECONDS))


@pytest.mark.parametrize("data", [b"GET /live HTTP/1.1\r\nhost: a\r\n\r\n", b"\x16\x03\x01", b"\0"])
def test_what_is_no_tls_is_turned_away_and_disturbs_nobody(pair, data, caplog):
    cert, key = pair

    async def main() -> bytes:
        async with serving(tls_cert=cert, tls_key=key) as served:
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(data)
            writer.write_eof()
            answer = await read_all(reader)
            writer.close()
            trusting = ssl.create_default_context(cafile=str(cert))
            async with served.client(verify=trusting) as client:
                assert (await client.get("/live")).text == "ok"
            return answer

    answer = asyncio.run(asyncio.wait_for(main(), SECONDS))
    assert not answer.startswith(b"HTTP")
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


def test_grpc_has_the_same_certificate(pair):
    cert, key = pair

    async def main() -> tuple[bool, grpc.StatusCode]:
        edge = Edge(EdgeSettings(tls_cert=cert, tls_key=key))
        server = GrpcServer(
            ServerContext(models=FakeModels()), edge, GrpcSettings.of(edge.settings, 0)
        )
        await server.start()
        try:
            return await live(server.port, cert), await refused(server.port)
        finally:
            await server.stop()

    async def live(port: int, cert: Path) -> bool:
        trusting = grpc.ssl_channel_credentials(cert.read_bytes())
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", trusting) as channel:
            stub = open_inference_pb2_grpc.GRPCInferenceServiceStub(channel)
            return (await stub.ServerLive(oip.ServerLiveRequest())).live

    async def refused(port: int) -> grpc.StatusCode:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = open_inference_pb2_grpc.GRPCInferenceServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.ServerLive(oip.ServerLiveRequest())
            return caught.value.code()

    assert asyncio.run(asyncio.wait_for(main(), SECONDS)) == (True, grpc.StatusCode.UNAVAILABLE)


def test_files_that_are_no_pair_are_named_before_anything_listens(pair, tmp_path):
    cert, key = pair
    _, other = certificate(tmp_path, "other")
    locked = certificate(tmp_path, "locked", "-passout", "pass:secret")
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate")
    for files, said in (
        ((cert, None), "a certificate and its key"),
        ((None, key), "a certificate and its key"),
        ((tmp_path / "none.pem", key), "none.pem cannot be read: No such file"),
        ((cert, tmp_path), "cannot be read: Is a directory"),
        ((broken, key), "broken.pem"),
        ((cert, broken), "broken.pem"),
        ((cert, other), "(?i)mismatch"),
        (locked, "locked.key"),
    ):
        with pytest.raises(UsageError, match=said):
            Edge(EdgeSettings(tls_cert=files[0], tls_key=files[1]))
    Edge(EdgeSettings(tls_cert=cert, tls_key=key))  # the control
