"""`POST /v1/completions` and `POST /v1/chat/completions`."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from functools import partial
from typing import cast

from ingot.serve.engine import Engine, Job, Progress
from ingot.serve.http.errors import refusal_of
from ingot.serve.http.gate import Asked, Watch
from ingot.serve.http.reply import (
    JSON,
    ClientGone,
    Receive,
    Reply,
    Scope,
    Send,
    read_body,
    while_connected,
)
from ingot.serve.http.site import Site, off_loop
from ingot.serve.openai.answers import Head
from ingot.serve.openai.chat_answer import ChatAnswer
from ingot.serve.openai.order import Caller, Order, chat_order, completion_order
from ingot.serve.openai.params import num_new_tokens
from ingot.serve.openai.requests import ChatRequest, CompletionRequest
from ingot.serve.openai.text_answer import TextAnswer

Request = CompletionRequest | ChatRequest
Answer = TextAnswer | ChatAnswer
Steps = AsyncGenerator[tuple[int, Progress]]


class Generate:
    """An ASGI application that answers one kind of request for text."""

    def __init__(self, site: Site, kind: type[Request]) -> None:
        self._site = site
        self._kind = kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reply = Reply(send)
        state = scope.get("state", {})
        request_id = state.get("request_id") or uuid.uuid4().hex
        try:
            body = await read_body(receive)
            async with while_connected(receive, reply):
                await self._answer(body, request_id, state.get("key", ""), reply)
        except ClientGone:
            pass
        except Exception as error:
            await reply.fail(refusal_of(error, request_id))

    async def _answer(self, body: bytes, request_id: str, key: str, reply: Reply) -> None:
        site = self._site
        request = await site.decode(body, self._kind)
        name = site.named(request.model)
        # Unlike the id of the request, which a client may choose, this one is unique.
        caller = Caller(uuid.uuid4().hex, key)
        async with self._kept_awake(request, reply), site.models.lease(name) as engine:
            order = await off_loop(partial(self._order, request, engine, caller, body))
            answer = self._begin(order, caller, name, engine)
            async with (
                site.gate.enter(_asked(order, request_id, key, name, engine)) as watch,
                aclosing(_steps(engine, order.jobs)) as steps,
            ):
                if request.stream:
                    await _stream(steps, watch, answer, reply)
                else:
                    await _whole(steps, watch, answer, reply, scores=order.scores)

    def _kept_awake(self, request: Request, reply: Reply) -> AbstractAsyncContextManager[None]:
        if not request.stream:
            return nullcontext()
        return reply.kept_awake(self._site.settings.ping_seconds)

    def _order(self, request: Request, engine: Engine, caller: Caller, body: bytes) -> Order:
        if isinstance(request, CompletionRequest):
            return completion_order(request, engine, caller, body)
        trusts = self._site.settings.trusts_request_template
        return chat_order(request, engine, caller, body, trusts_template=trusts)

    def _begin(self, order: Order, caller: Caller, name: str, engine: Engine) -> Answer:
        is_text = isinstance(order.request, CompletionRequest)
        what = "text_completion" if is_text else "chat.completion"
        head = Head(
            id=f"{'cmpl' if is_text else 'chatcmpl'}-{caller.request_id}",
            object=f"{what}.chunk" if order.request.stream and not is_text else what,
            created=int(time.time()),
            model=name,
            system_fingerprint=engine.facts.fingerprint,
        )
        return (TextAnswer if is_text else ChatAnswer)(order, head, engine.tokenizer)


def _asked(order: Order, request_id: str, key: str, name: str, engine: Engine) -> Asked:
    return Asked(
        request_id=request_id,
        model=name,
        key=key,
        num_sequences=order.n * len(order.jobs),
        num_tokens=order.num_tokens,
        num_prompt_tokens=order.num_prompt_tokens,
        max_tokens=num_new_tokens(order.request),
        priority=order.request.priority or 0,
        stream=bool(order.request.stream),
        facts=engine.facts,
    )


async def _stream(steps: Steps, watch: Watch, answer: Answer, reply: Reply) -> None:
    async for number, progress in steps:
        watch.see(progress)
        if events := answer.chunks(number, progress):
            await reply.write(events)
    await reply.end(answer.last())


async def _whole(steps: Steps, watch: Watch, answer: Answer, reply: Reply, *, scores: bool) -> None:
    done = []
    async for number, progress in steps:
        watch.see(progress)
        done.append((number, progress))
    # Thousands of log-probabilities are work for milliseconds.
    body = await off_loop(partial(answer.whole, done)) if scores else answer.whole(done)
    await reply.whole(body, 200, JSON)


async def _steps(engine: Engine, jobs: Sequence[Job]) -> Steps:
    """What the steps of the engine do for the jobs, each with the job's number."""
    if len(jobs) > 1:
        async with aclosing(_together(engine, jobs)) as steps:
            async for step in steps:
                yield step
        return
    async with _asking(engine, jobs[0]) as asked:
        async for progress in asked:
            yield 0, progress


async def _together(engine: Engine, jobs: Sequence[Job]) -> Steps:
    """The steps of several jobs, as they come. The first error ends all."""
    queue: asyncio.Queue[tuple[int, Progress] | Exception | None] = asyncio.Queue()

    async def run(number: int, job: Job) -> None:
        try:
            async with _asking(engine, job) as asked:
                async for progress in asked:
                    queue.put_nowait((number, progress))
            queue.put_nowait(None)
        except Exception as error:
            queue.put_nowait(error)

    tasks = [asyncio.create_task(run(number, job)) for number, job in enumerate(jobs)]
    try:
        num_left = len(jobs)
        while num_left:
            step = await queue.get()
            if isinstance(step, Exception):
                raise step
            if step is None:
                num_left -= 1
            else:
                yield step
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _asking(engine: Engine, job: Job) -> aclosing[AsyncGenerator[Progress]]:
    """A context that gives what a job gives; leaving it aborts the job."""
    return aclosing(cast(AsyncGenerator[Progress], engine.ask(job)))
