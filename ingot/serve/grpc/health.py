"""`grpc.health.v1`: what probes and balancers ask. A model is a service of its name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from ingot.serve.edge.guard import Host
from ingot.serve.grpc.call import is_anonymous
from ingot.serve.requests.context import ServerContext

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
WATCH_SECONDS = 1.0


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # generated
    """Says whether the server, a service of it, or a model is ready, as it is at that moment."""

    NAME = health.SERVICE_NAME

    def __init__(self, server: ServerContext, services: Sequence[str], host: Host) -> None:
        self._server = server
        self._services = frozenset(("", *services))
        self._host = host
        self._stopping = asyncio.Event()

    def add_to(self, server: Any) -> None:
        """Registers the service."""
        health_pb2_grpc.add_HealthServicer_to_server(self, server)

    async def stop(self) -> None:
        """Nothing is ready any more; whoever watches is told."""
        self._stopping.set()

    async def Check(self, request: Any, context: Any) -> Any:
        status = self._status(request.service)
        if status == UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "there is no such service or model")
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        last = None
        while True:
            status = self._status(request.service)
            if status != last:
                yield health_pb2.HealthCheckResponse(status=status)
                last = status
            if self._stopping.is_set():
                return
            try:
                await asyncio.wait_for(self._stopping.wait(), WATCH_SECONDS)
            except TimeoutError:
                continue

    def _status(self, service: str) -> Any:
        if service in self._services:
            return self._as_status(self._server.is_ready)
        for status in () if is_anonymous() else self._server.models.status():
            if service in (status.name, *status.aliases):
                return self._as_status(status.state == "loaded")
        return UNKNOWN

    def _as_status(self, ready: bool) -> Any:
        ends = self._stopping.is_set() or self._host.draining
        return SERVING if ready and not ends else NOT_SERVING
