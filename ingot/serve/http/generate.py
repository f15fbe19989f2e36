"""`POST /v1/completions` and `POST /v1/chat/completions`."""

from __future__ import annotations

import time
from collections.abc import Awaitable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from ingot.serve.http.reply import JSON, Receive, Reply, Scope, Send, replying
from ingot.serve.openai.answer import Answer
from ingot.serve.openai.answers import AnswerHead
from ingot.serve.openai.chat_answer import ChatAnswer
from ingot.serve.openai.requests import CompletionRequest
from ingot.serve.openai.text_answer import TextAnswer
from ingot.serve.requests.answering import Answering, Request, answering
from ingot.serve.requests.context import ServerContext, off_loop


class Generate:
    """An ASGI application that answers one kind of request for text."""

    def __init__(self, server: ServerContext, kind: type[Request]) -> None:
        self._server = server
        self._kind = kind

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        key = scope.get("state", {}).get("key", "")
        return replying(scope, receive, send, partial(self._answer, key))

    async def _answer(self, key: str, body: bytes, reply: Reply) -> None:
        request = await self._server.decode(body, self._kind)
        with self._kept_awake(request, reply):
            async with answering(self._server, request, key, body) as run:
                await (_stream if request.stream else _whole)(run, reply)

    def _kept_awake(self, request: Request, reply: Reply) -> AbstractContextManager[None]:
        if not request.stream:
            return nullcontext()
        return reply.kept_awake(self._server.settings.ping_seconds)


def _begin(run: Answering) -> Answer:
    """The answer to a request, before its first step."""
    is_text = isinstance(run.order.request, CompletionRequest)
    what = "text_completion" if is_text else "chat.completion"
    head = AnswerHead(
        id=f"{'cmpl' if is_text else 'chatcmpl'}-{run.caller.request_id}",
        object=f"{what}.chunk" if run.order.request.stream and not is_text else what,
        created=int(time.time()),
        model=run.model,
        system_fingerprint=run.engine.facts.fingerprint,
    )
    return (TextAnswer if is_text else ChatAnswer)(run.order, head)


async def _stream(run: Answering, reply: Reply) -> None:
    answer = _begin(run)
    async for number, progress in run.steps:
        events = answer.chunks(number, progress)
        if progress.finished:
            await reply.end(events + answer.last())
        elif events:
            await reply.write(events)


async def _whole(run: Answering, reply: Reply) -> None:
    answer = _begin(run)
    done = [step async for step in run.steps]
    # Thousands of log-probabilities are work for milliseconds.
    whole = partial(answer.whole, done)
    body = await off_loop(whole) if run.order.scores else whole()
    await reply.whole(body, 200, JSON)
