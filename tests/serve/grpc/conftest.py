"""A gRPC server over engines of scripts, and its clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from ingot.serve.edge.edge import Edge
from ingot.serve.edge.settings import EdgeSettings
from ingot.serve.grpc.server import GrpcServer, GrpcSettings
from ingot.serve.grpc.stubs import ingot_v1_pb2_grpc, open_inference_pb2_grpc
from ingot.serve.requests.context import ServerContext

HANGS_SECONDS = 60


class Client:
    """Stubs of every service, over one channel."""

    def __init__(self, server: GrpcServer, channel: Any, edge: Edge) -> None:
        self.server = server
        self.edge = edge
        self.channel = channel
        self.inference = ingot_v1_pb2_grpc.InferenceStub(channel)
        self.texts = ingot_v1_pb2_grpc.TextsStub(channel)
        self.models = ingot_v1_pb2_grpc.ModelsStub(channel)
        self.oip = open_inference_pb2_grpc.GRPCInferenceServiceStub(channel)


@asynccontextmanager
async def served(
    models: Any, settings: GrpcSettings | None = None, **options: Any
) -> AsyncIterator[Client]:
    """Serves models for the block; the options are those of the edge."""
    edge = Edge(EdgeSettings(**options))
    server = GrpcServer(ServerContext(models=models, gate=edge), edge, settings)
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            yield Client(server, channel, edge)
    finally:
        await server.stop()


@pytest.fixture
def run() -> Callable[[Awaitable[Any]], Any]:
    """Runs a coroutine; one that hangs is an error."""
    return lambda work: asyncio.run(asyncio.wait_for(work, HANGS_SECONDS))


async def failure(call: Any) -> tuple[grpc.StatusCode, str, dict[str, str]]:
    """The status, the text and the trailing metadata that a call ends with."""
    try:
        await call if not hasattr(call, "read") else await call.read()
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or "", dict(error.trailing_metadata() or ())
    raise AssertionError("the call was answered")
