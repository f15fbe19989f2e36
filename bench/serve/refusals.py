"""How soon each kind of request is refused, by an idle server and by one with a full line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import uvloop

from bench.figure import Figure
from bench.serve.running import Running, ingot_serve, serving
from bench.serve.sides import NAME, asks
from ingot.cli.load.http import Connection, request_bytes
from ingot.cli.load.server import Server

WAITING = 500  # clients in the line
FURTHER = 40  # those that are being answered, and some that are refused
LONG = 900  # tokens of each of them
TIMES = 20  # requests of each kind, one after the other
MOST_MS = 50.0
TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
SAYS = [{"role": "user", "content": "Go!"}]


class Bad(NamedTuple):
    """A request that is refused, and its status."""

    name: str
    status: int
    path: str
    body: Any


def _form(schema: Any) -> dict[str, Any]:
    return {"prompt": "x", "structured_outputs": {"json": schema}}


MANY: dict[str, Any] = {f"p{number}": {} for number in range(8000)}
ONLY_FULL = "a line that is full"
KINDS = (
    Bad("no JSON", 400, TEXT, b'{"prompt": '),
    Bad("NaN", 400, TEXT, b'{"prompt": "x", "top_p": NaN}'),
    Bad("a field of a wrong type", 400, TEXT, {"prompt": "x", "temperature": "hot"}),
    Bad("a value out of range", 400, TEXT, {"prompt": "x", "max_tokens": -1}),
    Bad("a field of another program", 400, TEXT, {"prompt": "x", "use_beam_search": True}),
    Bad("no messages", 400, CHAT, {"messages": []}),
    Bad("a prompt that is too long", 400, TEXT, {"prompt": [5] * 100_000}),
    Bad("a text that is too long", 400, TEXT, {"prompt": "To be " * 50_000}),
    Bad("a token beyond the vocabulary", 400, TEXT, {"prompt": [10**6]}),
    Bad("a schema: not", 400, TEXT, _form({"properties": {"a": {"not": {}}}})),
    Bad("a schema: many names", 400, TEXT, _form({"properties": MANY})),
    Bad("a regex", 400, TEXT, {"prompt": "x", "structured_outputs": {"regex": "("}}),
    Bad("a tool", 400, CHAT, {"messages": SAYS, "tools": [{"type": "x"}]}),
    Bad("a required call without tools", 400, CHAT, {"messages": SAYS, "tool_choice": "required"}),
    Bad("an unknown model", 404, TEXT, {"prompt": "x", "model": "none"}),
    Bad("an unknown route", 404, "/v1/none", {}),
    Bad(ONLY_FULL, 429, TEXT, {"prompt": "x"}),
)  # fmt: skip


def refusals(path: Path, rounds: int) -> Iterator[Figure]:
    """Every kind, before and while 500 clients wait; `rounds` is not used."""
    with serving(ingot_serve([f"{NAME}={path}"], "--max-queue", str(WAITING))) as running:
        yield from uvloop.run(_measured(running))


async def _measured(running: Running) -> list[Figure]:
    server = running.server(NAME)
    idle = [kind for kind in KINDS if kind.name != ONLY_FULL]
    found = [figure for kind in idle for figure in await _kind(server, kind, "idle")]
    prompts = [ask.prompt for ask in asks(7, WAITING + FURTHER, 1, 8)]
    tasks = [asyncio.create_task(_waiting(server, prompt)) for prompt in prompts]
    try:
        await _until_full(server)
        for kind in KINDS:
            found += await _kind(server, kind, f"{WAITING} wait")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return found


async def _kind(server: Server, bad: Bad, when: str) -> list[Figure]:
    """The middle and the worst of the seconds that a refusal takes, each on the same connection."""
    with closing(Connection(server.address)) as connection:
        found = [await _refused(server, connection, bad) for _ in range(TIMES)]
    took = [1e3 * seconds for seconds, _ in found]
    note = f"worst {max(took):.1f} ms, {', '.join(sorted({str(status) for _, status in found}))}"
    return [Figure(f"{bad.name}, {when}", median(took), "ms", MOST_MS, note=note)]


async def _refused(server: Server, connection: Connection, bad: Bad) -> tuple[float, int]:
    """The seconds, and the status: a full line refuses before it has looked at all."""
    body = bad.body
    if not isinstance(body, bytes):
        body = json.dumps({"model": NAME, **body}).encode()
    request = request_bytes(server.address, "POST", bad.path, {}, body)
    begin = perf_counter()
    head = await connection.ask(request, lambda part: None)
    seconds = perf_counter() - begin
    if head.status not in (bad.status, 429):
        raise RuntimeError(f"{bad.name} is answered by {head.status}, not {bad.status}")
    return seconds, head.status


async def _waiting(server: Server, prompt: Any) -> None:
    """A client that asks for a long answer again and again, so that the line stays full."""
    body = {"model": NAME, "prompt": prompt, "max_tokens": LONG, "ignore_eos": True}
    request = request_bytes(server.address, "POST", TEXT, {}, json.dumps(body).encode())
    with closing(Connection(server.address)) as connection:
        while True:
            await connection.ask(request, lambda part: None)
            await asyncio.sleep(1)


async def _until_full(server: Server) -> None:
    """Waits until the line refuses."""
    full = KINDS[-1]
    with closing(Connection(server.address)) as connection:
        while True:
            body = json.dumps({"model": NAME, **full.body, "max_tokens": 1}).encode()
            request = request_bytes(server.address, "POST", full.path, {}, body)
            if (await connection.ask(request, lambda part: None)).status == full.status:
                return
            await asyncio.sleep(0.1)
