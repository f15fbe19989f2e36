"""A request that came by gRPC, as the same request that came by HTTP would be."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from ingot.serve.grpc.call import current_call
from ingot.serve.openai.fields import FieldError
from ingot.serve.openai.requests import ChatRequest, CompletionRequest
from ingot.serve.requests.answering import Answering, Request, answering
from ingot.serve.requests.context import ServerContext


@asynccontextmanager
async def asking(
    server: ServerContext, body: Mapping[str, Any], *, stream: bool
) -> AsyncIterator[Answering]:
    """Runs a request, whose fields are those of HTTP. Leaving the block aborts it.

    Raises the errors that HTTP answers with.
    """
    _refuse_not_finite(body)
    data = msgspec.json.encode({**body, "stream": stream})
    request: Request = await server.decode(
        data, ChatRequest if "messages" in body else CompletionRequest
    )
    async with answering(server, request, current_call().key, data) as run:
        yield run


def _refuse_not_finite(body: Mapping[str, Any]) -> None:
    """Raises FieldError for a number that JSON cannot say, and would leave out."""
    for name, value in body.items():
        inside = value.values() if isinstance(value, dict) else (value,)
        if not all(math.isfinite(each) for each in inside if isinstance(each, float)):
            raise FieldError(name, f"{name} is not a finite number")
