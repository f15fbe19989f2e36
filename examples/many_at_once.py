"""Serves many requests with asyncio. They join the running batch at any time; one is cancelled."""

import asyncio
import sys

import ingot


async def complete(llm: ingot.AsyncLLM, name: str) -> str:
    params = ingot.SamplingParams(temperature=0.8, seed=len(name), max_tokens=30)
    async for output in llm.generate(f"{name}:\n", params):
        last = output
    return last.outputs[0].text


async def main() -> None:
    async with ingot.AsyncLLM(sys.argv[1]) as llm:
        names = ["ROMEO", "JULIET", "HAMLET", "PROSPERO"]
        tasks = [asyncio.create_task(complete(llm, name)) for name in names]
        await asyncio.sleep(0)  # all four begin
        tasks.pop().cancel()  # its request is aborted, and its memory is free again
        for name, text in zip(names, await asyncio.gather(*tasks), strict=False):
            print(f"{name}: {text!r}")


asyncio.run(main())
