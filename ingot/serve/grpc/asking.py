"""A request that came by gRPC, as the same request that came by HTTP would be."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec

from ingot.serve.grpc.call import current_call
from ingot.serve.openai.decode import converted_fields
from ingot.serve.openai.fields import FieldError
from ingot.serve.openai.requests import ChatRequest, CompletionRequest
from ingot.serve.requests.answering import Answering, Request, answering
from ingot.serve.requests.context import LARGE_BODY, ServerContext, parsed


@asynccontextmanager
async def asking(
    server: ServerContext, body: Mapping[str, Any], *, stream: bool
) -> AsyncIterator[Answering]:
    """Runs a request, whose fields are those of HTTP. Leaving the block aborts it.

    Raises the errors that HTTP answers with.
    """
    _refuse_not_finite(body)
    fields = {**body, "stream": stream}
    kind: type[Request] = ChatRequest if "messages" in body else CompletionRequest
    data = msgspec.json.encode(fields)  # its hash and its size stand for the request
    read = partial(converted_fields, fields, data, kind)
    request, names = read() if len(data) < LARGE_BODY else await parsed(read)
    server.unknown_fields.note(names, kind)
    async with answering(server, request, current_call().key, data) as run:
        yield run


def _refuse_not_finite(body: Mapping[str, Any]) -> None:
    """Raises FieldError for a number that JSON cannot say, and would leave out."""
    for name, value in body.items():
        inside = value.values() if isinstance(value, dict) else (value,)
        if not all(math.isfinite(each) for each in inside if isinstance(each, float)):
            raise FieldError(name, f"{name} is not a finite number")
