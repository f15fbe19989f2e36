"""A request for text, from its fields to the steps of an engine: the same for all fronts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import cast

from msgspec.structs import replace

from ingot.artifact.pooler import DOES
from ingot.runtime.unique import unique_id
from ingot.serve.asked import Asked
from ingot.serve.engine import Engine, Job, ModelFacts, Progress
from ingot.serve.openai.fields import FieldError
from ingot.serve.openai.order import Caller, Order, order_of
from ingot.serve.openai.params import num_new_tokens
from ingot.serve.openai.requests import ChatRequest, CompletionRequest
from ingot.serve.requests.context import SMALL_BODY, ServerContext, off_loop
from ingot.serve.requests.gate import Admitted

Steps = AsyncGenerator[tuple[int, Progress], None]
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
        refuse_other_task(engine.facts, name)
        make_order = partial(order_of, request, engine, caller, body, server.terms_of(name))
        registered = server.models.name_of(name)
        with server.gate.expect(Asked(model=registered, key=key, facts=engine.facts)):
            order = make_order() if _is_small(request, body) else await off_loop(make_order)
        asked = asked_of(order, key, registered, engine)
        async with (
            server.gate.enter(asked) as admitted,
            aclosing(steps_of(engine, order.jobs, admitted)) as steps,
        ):
            yield Answering(name, caller, engine, order, steps)


def refuse_other_task(facts: ModelFacts, name: str) -> None:
    """Raises FieldError for a model that generates no text."""
    if not facts.generates:
        does = DOES[facts.pooler.task] if facts.pooler else "reads whole texts"
        raise FieldError(
            "model",
            f"the model {name[:80]!r} {does}, and generates none",
            hint="Ask POST /v1/embeddings, or /classify and /v1/rerank of one that scores.",
            code="unsupported_task",
        )


def _is_small(request: Request, body: bytes) -> bool:
    """Returns whether the prompt takes next to no time. A template that a client brings may take
    any."""
    return len(body) <= SMALL_BODY and getattr(request, "chat_template", None) is None


def asked_of(order: Order, key: str, name: str, engine: Engine) -> Asked:
    """Demand of an order on the engine."""
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


async def steps_of(engine: Engine, jobs: Sequence[Job], admitted: Admitted) -> Steps:
    """Results of the engine's steps for the jobs of a request, each with the job's number."""
    if len(jobs) > 1:
        async with aclosing(_together(engine, jobs, admitted)) as several:
            async for number, progress in several:
                admitted.see(progress, number)
                yield number, progress
        return
    async with admitted.seat(), _asking(engine, jobs[0]) as asked:
        async for progress in asked:
            admitted.see(progress, 0)
            yield 0, progress


async def _together(engine: Engine, jobs: Sequence[Job], admitted: Admitted) -> Steps:
    """The steps of several jobs, as they come: one request, which has finished when all have. The
    first error ends all."""
    queue: asyncio.Queue[tuple[int, Progress] | Exception] = asyncio.Queue()

    async def run(number: int, job: Job) -> None:
        try:
            async with admitted.seat(), _asking(engine, job) as asked:
                async for progress in asked:
                    queue.put_nowait((number, progress))
        except Exception as error:
            queue.put_nowait(error)

    tasks = [asyncio.create_task(run(number, job)) for number, job in enumerate(jobs)]
    try:
        num_left = len(jobs)
        while num_left:
            step = await queue.get()
            if isinstance(step, Exception):
                raise step
            number, progress = step
            num_left -= progress.finished
            yield number, replace(progress, finished=not num_left)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _asking(engine: Engine, job: Job) -> aclosing[AsyncGenerator[Progress, None]]:
    """A context that gives what a job gives; leaving it aborts the job."""
    return aclosing(cast(AsyncGenerator[Progress, None], engine.ask(job)))
