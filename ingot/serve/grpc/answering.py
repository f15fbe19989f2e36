"""A request that came by gRPC, through the same doors as one that came by HTTP."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from ingot.serve.engine import Engine
from ingot.serve.grpc.call import current_call
from ingot.serve.http.gate import Watch
from ingot.serve.http.generate import asked_of
from ingot.serve.http.site import Site, off_loop
from ingot.serve.http.steps import Steps, steps_of
from ingot.serve.openai.fields import FieldError
from ingot.serve.openai.order import Caller, Order, order_of
from ingot.serve.openai.requests import ChatRequest, CompletionRequest
from ingot.serve.unique import unique_id


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
    call = current_call()
    _refuse_not_finite(body)
    data = msgspec.json.encode({**body, "stream": stream})
    chats = "messages" in body
    request: CompletionRequest | ChatRequest = await site.decode(
        data, ChatRequest if chats else CompletionRequest
    )
    name = site.named(request.model)
    caller = Caller(unique_id(), call.key)
    async with site.lease(name) as engine:
        terms = site.terms_of(name)
        order = await off_loop(partial(order_of, request, engine, caller, data, terms))
        asked = asked_of(order, call.key, site.models.name_of(name), engine)
        async with (
            site.gate.enter(asked) as watch,
            aclosing(steps_of(engine, order.jobs, watch.seat)) as steps,
            aclosing(_watched(steps, watch)) as seen,
        ):
            yield Answering(name, engine, order, seen)


def _refuse_not_finite(body: Mapping[str, Any]) -> None:
    """Raises FieldError for a number that JSON cannot say, and would leave out."""
    for name, value in body.items():
        inside = value.values() if isinstance(value, dict) else (value,)
        if not all(math.isfinite(each) for each in inside if isinstance(each, float)):
            raise FieldError(name, f"{name} is not a finite number")


async def _watched(steps: Steps, watch: Watch) -> Steps:
    async for number, progress in steps:
        watch.see(progress, number)
        yield number, progress
