"""What engines do for the jobs of a request, step by step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import cast

from msgspec.structs import replace

from ingot.serve.engine import Engine, Job, Progress
from ingot.serve.requests.gate import Admitted

Steps = AsyncGenerator[tuple[int, Progress], None]


async def steps_of(engine: Engine, jobs: Sequence[Job], admitted: Admitted) -> Steps:
    """What the steps of the engine do for the jobs of a request, each with the job's number."""
    if len(jobs) > 1:
        async with aclosing(_together(engine, jobs, admitted)) as several:
            async for number, progress in several:
                admitted.see(progress, number)
                yield number, progress
        return
    async with admitted.seat(), _asking(engine, jobs[0]) as asked:
        async for progress in asked:
            admitted.see(progress, 0)
            yield 0, progress


async def _together(engine: Engine, jobs: Sequence[Job], admitted: Admitted) -> Steps:
    """The steps of several jobs, as they come: one request, which has finished when all have. The
    first error ends all."""
    queue: asyncio.Queue[tuple[int, Progress] | Exception] = asyncio.Queue()

    async def run(number: int, job: Job) -> None:
        try:
            async with admitted.seat(), _asking(engine, job) as asked:
                async for progress in asked:
                    queue.put_nowait((number, progress))
        except Exception as error:
            queue.put_nowait(error)

    tasks = [asyncio.create_task(run(number, job)) for number, job in enumerate(jobs)]
    try:
        num_left = len(jobs)
        while num_left:
            step = await queue.get()
            if isinstance(step, Exception):
                raise step
            number, progress = step
            num_left -= progress.finished
            yield number, replace(progress, finished=not num_left)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _asking(engine: Engine, job: Job) -> aclosing[AsyncGenerator[Progress, None]]:
    """A context that gives what a job gives; leaving it aborts the job."""
    return aclosing(cast(AsyncGenerator[Progress, None], engine.ask(job)))
