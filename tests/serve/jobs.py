"""Jobs for the fake model, and running them."""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ingot.serve.engine import Engine, Job, Progress, joined

T = TypeVar("T")

GREEDY = {"temperature": 0, "max_tokens": 10, "ignore_eos": True}
LONG = {**GREEDY, "max_tokens": 90}
ENDLESS = {**GREEDY, "max_tokens": 8000}  # for minutes, on the dangerous model


def job(tokens, params=GREEDY, **fields) -> Job:
    return Job(id="a", token_ids=tokens, params=params, **fields)


async def whole(engine: Engine, asked: Job) -> Progress:
    """A job's progress as one."""
    return joined([progress async for progress in engine.ask(asked)])


async def tokens(engine: Engine, asked: Job) -> list[int]:
    """The tokens of a job's only completion."""
    (piece,) = (await whole(engine, asked)).pieces
    return piece.token_ids


def run(main: Callable[[], Awaitable[T]]) -> T:
    """Runs a scenario, and fails where it does not end."""
    return asyncio.run(asyncio.wait_for(main(), 120))


def has_ended(pid: int, seconds: float = 60.0) -> bool:
    """Whether a process ends in that time; it need not be a child."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    with os.fdopen(fd, "rb"):
        return bool(select.select([fd], [], [], seconds)[0])
