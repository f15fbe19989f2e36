"""Context that all routes and calls of a server share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import msgspec

from ingot.serve.engine import Engine
from ingot.serve.openai.chat_defaults import ChatDefaults
from ingot.serve.openai.decode import UnknownFields, decode
from ingot.serve.openai.fields import FieldError
from ingot.serve.openai.params import Terms
from ingot.serve.refusal import Loading, QueueFull
from ingot.serve.requests.gate import Gate, OpenGate
from ingot.serve.requests.models import Models

R = TypeVar("R", bound=msgspec.Struct)
T = TypeVar("T")

LARGE_BODY = 256 << 10  # bytes from which on a body is not parsed on the event loop
# Bytes up to which a prompt is made of a body on the event loop: it takes less than a millisecond,
# and the way through a thread and back takes as long.
SMALL_BODY = 4 << 10


LOADING_RETRY_SECONDS = 5.0
MAX_TOKENIZING, MAX_WAITING = 2, 64  # texts that `/tokenize` works on at once, and that wait


_PARSERS = ThreadPoolExecutor(2, "parsing")


class Turns:
    """Lets so many in at once. As many more as may wait do so; further ones are refused."""

    def __init__(self, most: int, most_waiting: int) -> None:
        self._room = asyncio.Semaphore(most)
        self._most = most + most_waiting
        self._num_inside = 0

    @asynccontextmanager
    async def take(self) -> AsyncIterator[None]:
        """Waits for a turn, which is the block's. Raises QueueFull."""
        if self._num_inside >= self._most:
            raise QueueFull(
                f"{self._num_inside} requests are tokenised or wait for it",
                hint="Try again later.",
                retry_after=1,
            )
        self._num_inside += 1
        try:
            async with self._room:
                yield
        finally:
            self._num_inside -= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """The switches of the HTTP front: what it lets requests ask for, what conversations of single
    models get instead, after how many seconds a stream that is silent gets a comment, and how many
    a request waits for its model to load; None: as long as it takes."""

    terms: Terms = field(default_factory=Terms)
    chats: Mapping[str, ChatDefaults] = field(default_factory=dict)
    ping_seconds: float = 15.0
    load_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerContext:
    """The models, what lets requests in, the settings, the names of models that are still loading
    for the first time since the server started, the unknown fields seen so far, and the turns of
    `/tokenize`."""

    models: Models
    gate: Gate = field(default_factory=OpenGate)
    settings: HttpSettings = HttpSettings()
    starting: set[str] = field(default_factory=set)
    unknown_fields: UnknownFields = field(default_factory=UnknownFields)
    tokenizing: Turns = field(default_factory=lambda: Turns(MAX_TOKENIZING, MAX_WAITING))

    async def decode(self, body: bytes, kind: type[R]) -> R:
        """A body as a struct. Raises FieldError."""
        read = partial(decode, body, kind)
        request, names = read() if len(body) < LARGE_BODY else await parsed(read)
        self.unknown_fields.note(names, kind)
        return request

    @property
    def is_ready(self) -> bool:
        """True if requests can be answered, now or as soon as a model is loaded for them.

        A server is ready when it has tried to load what it starts with, and while any model can
        serve: one that has failed must not keep requests from the others. A model that is loaded
        because somebody asked for it leaves the server ready: requests wait.
        """
        names = {status.name for status in self.models.status()}
        return not self.starting and (not names or names != self.missing)

    @property
    def missing(self) -> set[str]:
        """Models that are loaded at the start still, that have failed, or whose engine has died and
        is being started again."""
        return {
            status.name
            for status in self.models.status()
            if status.name in self.starting
            or status.state == "failed"
            or (status.state == "loading" and status.num_restarts and status.facts is not None)
        }

    @asynccontextmanager
    async def lease(self, name: str) -> AsyncIterator[Engine]:
        """The engine of a model, for the block. Raises Loading where it does not load in time, and
        what `ModelRegistry.lease` raises."""
        async with AsyncExitStack() as stack:
            seconds = self.settings.load_seconds
            deadline = asyncio.timeout(seconds)
            try:
                async with deadline:
                    engine = await stack.enter_async_context(self.models.lease(name))
            except TimeoutError:
                if not deadline.expired():
                    raise
                raise Loading(
                    f"the model {name[:80]!r} is loading; this request waited {seconds:g} seconds",
                    hint="Try again later.",
                    retry_after=LOADING_RETRY_SECONDS,
                ) from None
            yield engine

    def terms_of(self, name: str) -> Terms:
        """Limits of requests for a model, which may be called by an alias."""
        terms = self.settings.terms
        chats = self.settings.chats.get(self.models.name_of(name), terms.chats)
        return msgspec.structs.replace(terms, chats=chats)

    def named(self, name: str | None) -> str:
        """The model that a request means: without a name, the only one that there is.

        Raises FieldError where there is more than one.
        """
        if name is not None:
            return name
        names = [status.name for status in self.models.status()]
        if len(names) != 1:
            raise FieldError(
                "model",
                "model is missing",
                hint=f"Served here: {', '.join(names) or 'nothing'}.",
                code="missing_required_parameter",
            )
        return str(names[0])


async def parsed(read: Callable[[], T]) -> T:
    """Parses a large body in a thread. Prompts are made in others: who is to be refused does not
    wait for theirs."""
    return await asyncio.get_running_loop().run_in_executor(_PARSERS, read)


async def off_loop(work: Callable[[], T]) -> T:
    """Does what would keep all other clients waiting in a thread."""
    return await asyncio.to_thread(work)
