"""A request about texts at a model: its texts become jobs, and their results rows."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial

from ingot.artifact.pooler import Pooler, Task
from ingot.runtime.arrays import Float32
from ingot.runtime.scoring import (
    rows_of,
    token_rows_of,
)
from ingot.serve.asked import Asked
from ingot.serve.engine import Engine
from ingot.serve.requests.answering import steps_of
from ingot.serve.requests.context import SMALL_BODY, ServerContext, off_loop
from ingot.serve.texts import answers
from ingot.serve.texts.orders import Spelled, TextOrder, order_of, pooler_of
from ingot.serve.texts.requests import (
    TextRequest,
)


@dataclass(frozen=True, slots=True)
class Reading:
    """A request about texts, at a model that can answer it."""

    server: ServerContext
    name: str
    key: str
    body: bytes
    engine: Engine
    pooler: Pooler

    async def rows(
        self, texts: Sequence[Spelled], request: TextRequest, param: str, prompt: str = ""
    ) -> tuple[Float32, answers.TextUsage]:
        """What the model makes of each text behind a prompt, and how many tokens they had. Raises
        FieldError."""
        order = await self._order(texts, request, param, prompt)
        rows = rows_of(await self._read(order, request), len(order.lengths))
        return rows, answers.TextUsage(order.num_tokens, order.num_tokens)

    async def token_rows(
        self, texts: Sequence[Spelled], request: TextRequest, param: str, prompt: str = ""
    ) -> tuple[list[Float32], answers.TextUsage]:
        """The same of the tokens of each text."""
        order = await self._order(texts, request, param, prompt, of_tokens=True)
        rows = token_rows_of(await self._read(order, request), order.lengths)
        return rows, answers.TextUsage(order.num_tokens, order.num_tokens)

    async def _order(
        self,
        texts: Sequence[Spelled],
        request: TextRequest,
        param: str,
        prompt: str,
        *,
        of_tokens: bool = False,
    ) -> TextOrder:
        server, facts = self.server, self.engine.facts
        registered = server.models.name_of(self.name)
        make = partial(
            order_of,
            texts,
            self.engine,
            param=param,
            prompt=prompt,
            of_tokens=of_tokens,
            most=request.most_tokens,
            priority=request.priority or 0,
            fingerprint=hashlib.sha256(self.body).digest(),
        )
        with server.gate.expect(Asked(model=registered, key=self.key, facts=facts)):
            return make() if len(self.body) <= SMALL_BODY else await off_loop(make)

    async def _read(self, order: TextOrder, request: TextRequest) -> bytes:
        asked = Asked(
            model=self.server.models.name_of(self.name),
            key=self.key,
            task=self.pooler.task,
            num_jobs=len(order.jobs),
            num_sequences=len(order.jobs),
            num_tokens=order.num_tokens,
            num_prompt_tokens=order.num_tokens,
            max_tokens=0,
            priority=request.priority or 0,
            facts=self.engine.facts,
        )
        parts: dict[int, bytes] = {}
        async with (
            self.server.gate.enter(asked) as admitted,
            aclosing(steps_of(self.engine, order.jobs, admitted)) as steps,
        ):
            async for number, progress in steps:
                parts[number] = progress.rows
        return b"".join(parts[number] for number in range(len(order.jobs)))


@asynccontextmanager
async def reading(
    server: ServerContext, request: TextRequest, key: str, body: bytes, *tasks: Task
) -> AsyncIterator[Reading]:
    """The model that a request is for, which must have one of these tasks. Raises FieldError."""
    name = server.named(request.model)
    async with server.lease(name) as engine:
        pooler = pooler_of(engine.facts, name, *tasks)
        yield Reading(server, name, key, body, engine, pooler)
