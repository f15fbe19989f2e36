"""`ingot.v1.Models`: which models there are, and loading and unloading them."""

from __future__ import annotations

from typing import Any

from ingot.errors import UnknownModelError
from ingot.serve.grpc.call import is_admin
from ingot.serve.grpc.stubs import ingot_v1_pb2 as v1
from ingot.serve.grpc.stubs import ingot_v1_pb2_grpc
from ingot.serve.requests.context import ServerContext


class ModelsService(ingot_v1_pb2_grpc.ModelsServicer):  # type: ignore[misc]  # generated
    """The service over the registry of a server."""

    def __init__(self, server: ServerContext) -> None:
        self._registry: Any = server.models

    async def List(self, request: Any, context: Any) -> Any:
        return v1.ListResponse(models=map(_told, self._registry.status()))

    async def Load(self, request: Any, context: Any) -> Any:
        await self._registry.load(request.model)
        return self._one(request.model)

    async def Unload(self, request: Any, context: Any) -> Any:
        await self._registry.unload(request.model)
        return self._one(request.model)

    async def Reload(self, request: Any, context: Any) -> Any:
        await self._registry.reload(request.model, *([request.path] if request.path else []))
        return self._one(request.model)

    def _one(self, name: str) -> Any:
        """The model's status. Raises UnknownModelError."""
        for status in self._registry.status():
            if name in (status.name, *status.aliases):
                return _told(status)
        raise UnknownModelError(f"no model is called {name!r}")


def _told(status: Any) -> Any:
    facts = status.facts
    return v1.ModelStatus(
        name=status.name,
        state=str(status.state),
        aliases=status.aliases,
        error=(getattr(status, "error", None) or "") if is_admin() else "",
        artifact_id=facts.artifact_id if facts else "",
        max_model_len=facts.max_model_len if facts else 0,
        max_num_seqs=facts.max_num_seqs if facts else 0,
    )
