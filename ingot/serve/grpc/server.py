"""The gRPC server beside HTTP: the same models, the same keys, the same limits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from grpc_reflection.v1alpha import reflection

from ingot.errors import UsageError
from ingot.serve.edge.guard import Host
from ingot.serve.edge.settings import EdgeSettings
from ingot.serve.grpc.call import CallGuard
from ingot.serve.grpc.health import Health
from ingot.serve.grpc.inference import Inference
from ingot.serve.grpc.models import ModelsService
from ingot.serve.grpc.open_inference import OpenInference
from ingot.serve.grpc.stubs import (
    ingot_v1_pb2,
    ingot_v1_pb2_grpc,
    open_inference_pb2,
    open_inference_pb2_grpc,
)
from ingot.serve.grpc.texts import Texts
from ingot.serve.requests.context import ServerContext

SERVICES = (
    *(service.full_name for service in open_inference_pb2.DESCRIPTOR.services_by_name.values()),
    *(service.full_name for service in ingot_v1_pb2.DESCRIPTOR.services_by_name.values()),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcSettings:
    """Settings of the gRPC server: its address and its limits.

    `port` 0 is any that is free. Sizes are in bytes.
    """

    host: str = "127.0.0.1"
    port: int = 0
    tls_cert: Path | None = None
    tls_key: Path | None = None
    max_message_bytes: int = 8 << 20
    max_metadata_bytes: int = 64 << 10
    keepalive_seconds: float = 60.0

    @classmethod
    def of(cls, edge: EdgeSettings, port: int) -> GrpcSettings:
        """Settings for a server beside one of HTTP. Raises UsageError for a port that may not be
        opened so."""
        edge.of_port.check()
        return cls(
            host=edge.host,
            port=port,
            tls_cert=edge.tls_cert,
            tls_key=edge.tls_key,
            max_message_bytes=edge.limits.body_bytes,
            max_metadata_bytes=edge.limits.header_bytes,
        )


class GrpcServer:
    """Serves the models until it is stopped. For the event loop that starts it.

    `host` has the keys, and is told of every call.
    """

    def __init__(
        self,
        server: ServerContext,
        host: Host,
        settings: GrpcSettings | None = None,
    ) -> None:
        settings = self._settings = settings or GrpcSettings()
        self.port = settings.port
        self._listener = grpc.aio.server(
            interceptors=[CallGuard(host)], options=[*_options(settings)]
        )
        self._health = Health(server, SERVICES, host)
        self._health.add_to(self._listener)
        self._open_inference = OpenInference(server, host)
        open_inference_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(
            self._open_inference, self._listener
        )
        ingot_v1_pb2_grpc.add_InferenceServicer_to_server(Inference(server), self._listener)
        ingot_v1_pb2_grpc.add_TextsServicer_to_server(Texts(server), self._listener)
        ingot_v1_pb2_grpc.add_ModelsServicer_to_server(ModelsService(server), self._listener)
        names = (*SERVICES, Health.NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._listener)

    async def start(self) -> None:
        """Listens. Raises UsageError for an address that cannot be had, or TLS files that are
        none."""
        settings = self._settings
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        address = f"{host}:{settings.port}"
        try:
            if settings.tls_cert is None:
                self.port = self._listener.add_insecure_port(address)
            else:
                self.port = self._listener.add_secure_port(address, _credentials(settings))
        except RuntimeError as error:
            raise UsageError(
                f"gRPC cannot listen on {address}", hint="Is the port in use? Name another."
            ) from error
        await self._listener.start()

    async def stop(self, grace: float | None = None) -> None:
        """Takes no new calls, and ends those that run after `grace` seconds."""
        await self._health.stop()
        await self._open_inference.stop()
        await self._listener.stop(grace)


def _options(settings: GrpcSettings) -> Iterable[tuple[str, Any]]:
    yield "grpc.max_receive_message_length", settings.max_message_bytes
    yield "grpc.max_metadata_size", settings.max_metadata_bytes
    # A client that is gone without a word is found out by a ping.
    yield "grpc.keepalive_time_ms", round(settings.keepalive_seconds * 1000)
    yield "grpc.so_reuseport", 0  # a port in use is an error, not shared


def _credentials(settings: GrpcSettings) -> Any:
    assert settings.tls_cert is not None
    try:
        chain = settings.tls_cert.read_bytes()
        key = (settings.tls_key or settings.tls_cert).read_bytes()
    except OSError as error:
        raise UsageError(f"{error.filename}: {(error.strerror or 'unreadable').lower()}") from error
    return grpc.ssl_server_credentials([(key, chain)])
