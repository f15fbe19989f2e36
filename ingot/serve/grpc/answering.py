"""A request that came by gRPC, through the same doors as one that came by HTTP."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from ingot.serve.engine import Engine, Progress
from ingot.serve.grpc.call import CALL
from ingot.serve.http.gate import Watch
from ingot.serve.http.site import Site, off_loop
from ingot.serve.http.steps import asked, steps
from ingot.serve.openai.order import Caller, Order, chat_order, completion_order
from ingot.serve.openai.requests import ChatRequest, CompletionRequest

Steps = AsyncGenerator[tuple[int, Progress], None]


@dataclass(frozen=True, slots=True)
class Answering:
    """A request that runs: the model, what was ordered of it, and what its steps do for which
    of the order's jobs."""

    model: str
    engine: Engine
    order: Order
    steps: Steps


@asynccontextmanager
async def answering(
    site: Site, body: Mapping[str, Any], *, stream: bool
) -> AsyncIterator[Answering]:
    """Runs a request, whose fields are those of HTTP. Leaving the block aborts it.

    Raises the errors that HTTP answers with.
    """
    call = CALL.get()
    data = msgspec.json.encode(body)
    request = await site.decode(data, ChatRequest if "messages" in body else CompletionRequest)
    name = site.named(request.model)
    caller = Caller(uuid.uuid4().hex, call.key)
    async with site.models.lease(name) as engine:
        order = await off_loop(partial(_order, site, request, engine, caller, data))
        entered = asked(order, call.request_id, call.key, name, engine, stream=stream)
        async with site.gate.enter(entered) as watch, aclosing(steps(engine, order.jobs)) as told:
            async with aclosing(_watched(told, watch)) as seen:
                yield Answering(name, engine, order, seen)


def _order(
    site: Site, request: CompletionRequest | ChatRequest, engine: Engine, caller: Caller, data: bytes
) -> Order:
    if isinstance(request, CompletionRequest):
        return completion_order(request, engine, caller, data)
    trusts = site.settings.trusts_request_template
    return chat_order(request, engine, caller, data, trusts_template=trusts)


async def _watched(told: Steps, watch: Watch) -> Steps:
    async for number, progress in told:
        watch.see(progress)
        yield number, progress
