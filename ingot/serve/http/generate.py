"""`POST /v1/completions` and `POST /v1/chat/completions`."""

from __future__ import annotations

import time
from collections.abc import Awaitable
from contextlib import AbstractContextManager, aclosing, nullcontext
from functools import partial

from ingot.serve.asked import Asked
from ingot.serve.engine import Engine
from ingot.serve.http.gate import Watch
from ingot.serve.http.reply import JSON, Receive, Reply, Scope, Send, replying
from ingot.serve.http.site import SMALL_BODY, Site, off_loop
from ingot.serve.http.steps import Steps, steps_of
from ingot.serve.openai.answer import Answer
from ingot.serve.openai.answers import Head
from ingot.serve.openai.chat_answer import ChatAnswer
from ingot.serve.openai.order import Caller, Order, order_of
from ingot.serve.openai.params import num_new_tokens
from ingot.serve.openai.requests import ChatRequest, CompletionRequest
from ingot.serve.openai.text_answer import TextAnswer
from ingot.serve.unique import unique_id

Request = CompletionRequest | ChatRequest


class Generate:
    """An ASGI application that answers one kind of request for text."""

    def __init__(self, site: Site, kind: type[Request]) -> None:
        self._site = site
        self._kind = kind

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        key = scope.get("state", {}).get("key", "")
        return replying(scope, receive, send, partial(self._answer, key))

    async def _answer(self, key: str, body: bytes, reply: Reply) -> None:
        request = await self._site.decode(body, self._kind)
        with self._kept_awake(request, reply):
            await self._generate(request, key, body, reply)

    async def _generate(self, request: Request, key: str, body: bytes, reply: Reply) -> None:
        site = self._site
        name = site.named(request.model)
        registered = site.models.name_of(name)
        # Unlike the id of the request, which a client may choose, this one is unique.
        caller = Caller(unique_id(), key)
        async with site.lease(name) as engine:
            terms = site.terms_of(name)
            make_order = partial(order_of, request, engine, caller, body, terms)
            order = make_order() if _is_small(request, body) else await off_loop(make_order)
            answer = self._begin(order, caller, name, engine)
            async with (
                site.gate.enter(asked_of(order, key, registered, engine)) as watch,
                aclosing(steps_of(engine, order.jobs, watch.seat)) as steps,
            ):
                if request.stream:
                    await _stream(steps, watch, answer, reply)
                else:
                    await _whole(steps, watch, answer, reply, scores=order.scores)

    def _kept_awake(self, request: Request, reply: Reply) -> AbstractContextManager[None]:
        if not request.stream:
            return nullcontext()
        return reply.kept_awake(self._site.settings.ping_seconds)

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
        return (TextAnswer if is_text else ChatAnswer)(order, head)


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


async def _stream(steps: Steps, watch: Watch, answer: Answer, reply: Reply) -> None:
    async for number, progress in steps:
        watch.see(progress, number)
        events = answer.chunks(number, progress)
        if progress.finished:
            await reply.end(events + answer.last())
        elif events:
            await reply.write(events)


async def _whole(steps: Steps, watch: Watch, answer: Answer, reply: Reply, *, scores: bool) -> None:
    done = []
    async for number, progress in steps:
        watch.see(progress, number)
        done.append((number, progress))
    # Thousands of log-probabilities are work for milliseconds.
    body = await off_loop(partial(answer.whole, done)) if scores else answer.whole(done)
    await reply.whole(body, 200, JSON)
