"""A request for text, from its fields to the steps of an engine: the same for all fronts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial

from ingot.serve.asked import Asked
from ingot.serve.engine import Engine
from ingot.serve.openai.order import Caller, Order, order_of
from ingot.serve.openai.params import num_new_tokens
from ingot.serve.openai.requests import ChatRequest, CompletionRequest
from ingot.serve.requests.context import SMALL_BODY, ServerContext, off_loop
from ingot.serve.requests.steps import Steps, steps_of
from ingot.serve.unique import unique_id

Request = CompletionRequest | ChatRequest


@dataclass(frozen=True, slots=True)
class Answering:
    """A request that runs.

    Attributes:
        model: the name that the client knows it by.
        caller: its key, and an id that no other request has.
        steps: what the steps of the engine do, each with the number of the job that it is for.
    """

    model: str
    caller: Caller
    engine: Engine
    order: Order
    steps: Steps


@asynccontextmanager
async def answering(
    server: ServerContext, request: Request, key: str, body: bytes
) -> AsyncIterator[Answering]:
    """Runs a request, which has come as that body. Leaving the block aborts it.

    Raises what a front answers with an error; see `errors`.
    """
    name = server.named(request.model)
    # Unlike the id of the request, which a client may choose, this one is unique.
    caller = Caller(unique_id(), key)
    async with server.lease(name) as engine:
        make_order = partial(order_of, request, engine, caller, body, server.terms_of(name))
        order = make_order() if _is_small(request, body) else await off_loop(make_order)
        asked = asked_of(order, key, server.models.name_of(name), engine)
        async with (
            server.gate.enter(asked) as admitted,
            aclosing(steps_of(engine, order.jobs, admitted)) as steps,
        ):
            yield Answering(name, caller, engine, order, steps)


def _is_small(request: Request, body: bytes) -> bool:
    """Whether the prompt takes next to no time. A template that a client brings may take any."""
    return len(body) <= SMALL_BODY and getattr(request, "chat_template", None) is None


def asked_of(order: Order, key: str, name: str, engine: Engine) -> Asked:
    """What an order takes of the engine."""
    return Asked(
        model=name,
        key=key,
        num_jobs=len(order.jobs),
        num_sequences=order.n * len(order.jobs),
        num_tokens=order.num_tokens,
        num_prompt_tokens=order.num_prompt_tokens,
        max_tokens=num_new_tokens(order.request),
        priority=order.request.priority or 0,
        facts=engine.facts,
        prompts=[prompt.text for prompt in order.prompts],
    )
