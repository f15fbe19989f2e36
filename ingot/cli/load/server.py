"""The server that is measured: how each kind of request is put to it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ingot.cli.load.demand import LoadAsk, Seconds, sample_text
from ingot.cli.load.http import Address, Connection, request_bytes
from ingot.cli.load.stream import RequestOutcome, ServerError, StreamReader, explain
from ingot.errors import UsageError

ENDPOINTS = {"openai": "/v1/completions", "openai-chat": "/v1/chat/completions"}
ERRORS = (OSError, ServerError, msgspec.MsgspecError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server that requests go to, and what all of them say. `extra` are fields of every body."""

    address: Address
    backend: str
    model: str = ""
    endpoint: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    def request(self, ask: LoadAsk) -> bytes:
        """One request as it is sent."""
        chat = self.backend == "openai-chat"
        length = "max_completion_tokens" if chat else "max_tokens"
        body = {
            "model": self.model,
            length: ask.output_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.extra,
        }
        if chat:
            body["messages"] = [{"role": "user", "content": ask.prompt}]
        else:
            body["prompt"] = ask.prompt
        path = self.endpoint or ENDPOINTS[self.backend]
        return request_bytes(self.address, "POST", path, self.headers, msgspec.json.encode(body))

    async def first_model(self) -> str:
        """The first model of the server's list. Raises UsageError where there is none."""
        found = await self.call("GET", "/v1/models")
        try:
            return str(found["data"][0]["id"])
        except (KeyError, IndexError, TypeError):
            raise UsageError(
                "the server lists no model", hint="Name one with --model, or load one."
            ) from None

    async def vocabulary(self, seed: int) -> tuple[int, ...]:
        """Tokens that prompts can be drawn from; none where the server has no `/tokenize`."""
        text = sample_text(seed)
        # vLLM's server and ours read `prompt`, llama.cpp's `content`.
        body = {"model": self.model, "prompt": text, "content": text}
        try:
            found = await self.call("POST", "/tokenize", body)
        except ServerError:
            return ()
        tokens = found.get("tokens") if isinstance(found, dict) else None
        return tuple(sorted({token for token in tokens or () if isinstance(token, int)}))

    async def call(self, method: str, path: str, body: object = None) -> Any:
        """The JSON that a route answers with.

        Raises ServerError for an answer that is an error, and UsageError where nothing answers.
        """
        data = b"" if body is None else msgspec.json.encode(body)
        parts: list[bytes] = []
        with closing(Connection(self.address)) as connection:
            try:
                request = request_bytes(self.address, method, path, self.headers, data)
                head = await connection.ask(request, parts.append)
            except OSError as error:
                raise UsageError(
                    f"nothing answers at {self.address.authority}: {error}",
                    hint="Start a server, such as `ingot serve MODEL`, or name another --base-url.",
                ) from error
        if head.status != 200:
            raise ServerError(explain(head.status, b"".join(parts)))
        try:
            return msgspec.json.decode(b"".join(parts))
        except msgspec.MsgspecError as error:
            raise ServerError(f"{path} answers what is no JSON: {error}") from None


async def one(server: Server, connection: Connection, ask: LoadAsk) -> RequestOutcome:
    """Sends a request and reads its answer; what fails is said in `Outcome.error`."""
    outcome = RequestOutcome(prompt_tokens=ask.prompt_tokens)
    reader = StreamReader(outcome)
    said: list[bytes] = []

    def take(body: bytes) -> None:
        if connection.status == 200:
            reader.take(body)
        else:
            said.append(body)

    request = server.request(ask)
    reader.begin()
    try:
        head = await connection.ask(request, take)
        if head.status != 200:
            raise ServerError(explain(head.status, b"".join(said)))
        reader.end()
    except ERRORS as error:
        connection.close()
        outcome.error = str(error) or type(error).__name__
    return outcome


class ConnectionPool:
    """Connections that have answered and can be asked again."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._idle: list[Connection] = []

    async def ask(self, ask: LoadAsk) -> RequestOutcome:
        """As `one`, on a connection that is free."""
        connection = self._idle.pop() if self._idle else Connection(self._server.address)
        outcome = await one(self._server, connection, ask)
        self._idle.append(connection)
        return outcome

    def close(self) -> None:
        for connection in self._idle:
            connection.close()


async def put_load(
    server: Server, asks: Sequence[LoadAsk], arrivals: Seconds, max_concurrency: int | None
) -> tuple[list[RequestOutcome], float]:
    """Sends every request at its moment; returns how each fared, and the seconds of it all.

    A request that waits for others to end, because `max_concurrency` are under way, begins when it
    is sent.
    """
    loop = asyncio.get_running_loop()
    room = asyncio.Semaphore(max_concurrency or len(asks))
    tasks = []
    with closing(ConnectionPool(server)) as pool:
        start = loop.time()

        async def send(ask: LoadAsk) -> RequestOutcome:
            async with room:
                return await pool.ask(ask)

        async with asyncio.TaskGroup() as group:
            for moment, ask in zip(arrivals, asks, strict=True):
                await asyncio.sleep(start + float(moment) - loop.time())
                tasks.append(group.create_task(send(ask)))
        return [task.result() for task in tasks], loop.time() - start
