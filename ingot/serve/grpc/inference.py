"""`ingot.v1.Inference`: completions with everything that `SamplingParams` has."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from ingot.serve.grpc.asking import asking
from ingot.serve.grpc.call import Aborted, CallOrigin, current_call
from ingot.serve.grpc.messages import body_of, joined, response_of
from ingot.serve.grpc.stubs import ingot_v1_pb2, ingot_v1_pb2_grpc
from ingot.serve.requests.context import ServerContext


class Inference(ingot_v1_pb2_grpc.InferenceServicer):  # type: ignore[misc]  # generated
    """The service over the models of a server."""

    def __init__(self, server: ServerContext) -> None:
        self._server = server
        self._running = Running()

    async def GenerateStream(self, request: Any, context: Any) -> AsyncIterator[Any]:
        call = _call_of(request)
        async with (
            self._running.abortable(call),
            asking(self._server, body_of(request), stream=True) as run,
        ):
            async for _, progress in run.steps:
                yield response_of(progress, run.model, call.request_id)

    async def Generate(self, request: Any, context: Any) -> Any:
        call = _call_of(request)
        async with (
            self._running.abortable(call),
            asking(self._server, body_of(request), stream=False) as run,
        ):
            parts = [progress async for _, progress in run.steps]
            return response_of(joined(parts), run.model, call.request_id)

    async def Abort(self, request: Any, context: Any) -> Any:
        found = self._running.abort(CallOrigin(request.request_id, current_call().key))
        return ingot_v1_pb2.AbortResponse(num_aborted=found)


class Running:
    """Requests that run, by the ids that their clients know them by. For one event loop."""

    def __init__(self) -> None:
        self._scopes: defaultdict[CallOrigin, set[asyncio.Timeout]] = defaultdict(set)

    @asynccontextmanager
    async def abortable(self, call: CallOrigin) -> AsyncIterator[None]:
        """A block that `abort` ends. Raises Aborted then."""
        scope = asyncio.timeout(None)  # an abort makes its time run out
        self._scopes[call].add(scope)
        try:
            async with scope:
                yield
        except TimeoutError:
            if scope.expired():
                raise Aborted("the request was aborted") from None
            raise
        finally:
            self._scopes[call].discard(scope)
            if not self._scopes[call]:
                del self._scopes[call]

    def abort(self, call: CallOrigin) -> int:
        """Ends the requests of that id and key; returns how many there were."""
        scopes = self._scopes.get(call, set())
        for scope in scopes:
            scope.reschedule(0)
        return len(scopes)


def _call_of(request: Any) -> CallOrigin:
    call = current_call()
    return CallOrigin(request.request_id or call.request_id, call.key)
