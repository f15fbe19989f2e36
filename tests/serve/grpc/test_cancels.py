"""Many calls of gRPC over an engine process, half of which are cancelled at random moments."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from ingot.serve.grpc.stubs import ingot_v1_pb2 as v1
from ingot.serve.isolated.client import IsolatedEngine
from ingot.serve.settings import ModelSettings
from tests.runtime.fake_model import greedy
from tests.serve.grpc.conftest import Client, served
from tests.support.core import core
from tests.support.fake_engine import FakeModels
from tests.support.until import until

LONG, LONGER = 30, 300  # tokens of a call that is read to its end, and at most of the others


class Told:
    """Counts the tokens of all calls: the moments at which calls are cancelled."""

    def __init__(self) -> None:
        self.count = 0
        self._news = asyncio.Condition()

    async def add(self, count: int) -> None:
        async with self._news:
            self.count += count
            self._news.notify_all()

    async def reach(self, count: int) -> None:
        async with self._news:
            await self._news.wait_for(lambda: self.count >= count)


def asked(number: int, max_tokens: int) -> Any:
    params = v1.SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    return v1.GenerateRequest(token_ids=v1.TokenIds(ids=prompt(number)), params=params)


def prompt(number: int) -> list[int]:
    return [1 + number % 250, 1 + number // 250]


async def whole(client: Client, number: int, told: Told) -> None:
    """Reads a stream, or an answer, whose tokens must be the model's."""
    tokens: list[int] = []
    if number % 4:
        async for part in client.inference.GenerateStream(asked(number, LONG)):
            tokens += part.completions[0].token_ids
            await told.add(len(part.completions[0].token_ids))
    else:
        answer = await client.inference.Generate(asked(number, LONG))
        tokens += answer.completions[0].token_ids
        await told.add(len(tokens))
    assert tokens == greedy(prompt(number), LONG)


async def cancelled(client: Client, number: int, told: Told, when: int) -> bool:
    """Whether it was cut off: it may have come to its end before."""
    if number % 4:
        call = client.inference.GenerateStream(asked(number, LONGER))
        reading = asyncio.create_task(_read(call, told))
    else:
        call = client.inference.Generate(asked(number, LONGER))
        reading = asyncio.create_task(_wait(call))
    await told.reach(when)
    call.cancel()
    await reading
    return bool(await call.code() == grpc.StatusCode.CANCELLED)


async def _read(call: Any, told: Told) -> None:
    with suppress(asyncio.CancelledError):
        async for part in call:
            await told.add(len(part.completions[0].token_ids))


async def _wait(call: Any) -> None:
    with suppress(asyncio.CancelledError):
        await call


async def storm(client: Client, count: int) -> int:
    """Runs so many calls; how many were cut off."""
    told, chance = Told(), random.Random(count)
    last = count // 2 * LONG * 3 // 4  # so many tokens are told, even if all others are cut off
    tasks: list[asyncio.Task[Any]] = []
    for number in range(count):
        if number % 2:
            tasks.append(asyncio.create_task(whole(client, number // 2, told)))
        else:
            when = chance.randrange(last)
            tasks.append(asyncio.create_task(cancelled(client, number // 2, told, when)))
    return sum(bool(each) for each in await asyncio.gather(*tasks))


async def until_idle(engine: IsolatedEngine) -> None:
    """Waits until nothing runs, waits or holds a page; whoever runs the test sets the deadline."""
    while True:
        found = await engine.counters()
        if not (found.num_running or found.num_waiting) and found.num_free_pages == found.num_pages:
            return


@pytest.mark.parametrize("count", core(48, further=(), slow=[480]))
def test_nothing_is_left_of_calls_that_were_cancelled(dangerous_artifact: Path, count: int) -> None:
    async def main() -> None:
        engine = await IsolatedEngine.open("m", str(dangerous_artifact), ModelSettings(threads=1))
        try:
            async with served(FakeModels(m=engine)) as client:
                pid = (await engine.supervisor.process()).pid
                assert await storm(client, count) > count // 8
                await until_idle(engine)
                line = client.edge.admission.lines["m"]
                await until(lambda: not (line.num_taken or line.num_running or line.num_waiting))
                before = await engine.counters()
                assert before.num_aborted > 0 and before.num_failed == 0
                await whole(client, 7, Told())
                after = await engine.counters()
                # No step was made for calls that had ended.
                assert after.num_generated_tokens == before.num_generated_tokens + LONG
                assert (await engine.supervisor.process()).pid == pid
        finally:
            await engine.close()

    asyncio.run(asyncio.wait_for(main(), 60 + count))
