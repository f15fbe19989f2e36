"""Uses all of a server's KV cache once: its memory belongs to the process from then on."""

from __future__ import annotations

import asyncio
import re
from contextlib import closing
from dataclasses import replace

from bench.serve.held import metrics
from bench.serve.sides import asks
from ingot.cli.load.demand import LoadAsk
from ingot.cli.load.server import ConnectionPool, Server

AT_ONCE = 8
FIRST = -1_000  # before what waits
_POOL = re.compile(r'^ingot_cache_config_info{.*block_size="(\d+)".*num_gpu_blocks="(\d+)"', re.M)


async def fill(server: Server, seed: int) -> int:
    """Asks with prompts that nobody has sent, until each page was used; how many of them failed.

    A page that was used stays known by its tokens, and is taken for others only when there is none
    that was never used. Without this, memory would rise for as long as there are new prompts.
    """
    prompts = iter(await _prompts(server, seed))
    ahead = replace(server, extra={**server.extra, "priority": FIRST})

    async def work(pool: ConnectionPool) -> int:
        return sum([bool((await pool.ask(each)).error) for each in prompts])

    with closing(ConnectionPool(ahead)) as pool:
        return sum(await asyncio.gather(*(work(pool) for _ in range(AT_ONCE))))


async def _prompts(server: Server, seed: int) -> list[LoadAsk]:
    """Prompts whose full pages are as many as there are; each leaves room for a token."""
    (model,) = (await server.call("GET", "/v1/models"))["data"]
    found = _POOL.search(await metrics(server))
    assert found is not None, "the metrics say how large the KV cache is"
    page_size, num_pages = map(int, found.groups())
    length = model["max_model_len"] - 1
    return asks(seed, -(-num_pages // (length // page_size)), 1, length)
