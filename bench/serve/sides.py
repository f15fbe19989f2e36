"""The same requests through `LLM` in this process and over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import uvloop

import ingot
from bench.figure import Figure
from bench.serve.running import Running, ingot_serve, serving
from ingot.cli.load.demand import Demand, LoadAsk
from ingot.cli.load.server import ConnectionPool, Server, put_load
from ingot.cli.load.stream import RequestOutcome

# Tokens that every model here has, and none of them a special one.
VOCABULARY = tuple(range(300, 1300))
PROMPT, ANSWER = 32, 128  # tokens
MODEL_LEN = 512
SINGLES = 30  # requests of a round, one after the other
NAME = "m"


def asks(seed: int, count: int, output: int = ANSWER, length: int = PROMPT) -> list[LoadAsk]:
    """Requests; another seed gives others, so that nobody finds their prompts in a cache."""
    return Demand(
        num_prompts=count, input_len=length, output_len=output, seed=seed, vocabulary=VOCABULARY
    ).asks()


def over_http(
    server: Server, asked: Sequence[LoadAsk], clients: int | None = None
) -> tuple[list[RequestOutcome], float]:
    """How each request fared, and the seconds of all. Raises RuntimeError where one failed."""
    found, seconds = tried(server, asked, clients)
    refuse_failed(found)
    return found, seconds


def tried(
    server: Server, asked: Sequence[LoadAsk], clients: int | None = None
) -> tuple[list[RequestOutcome], float]:
    """How each request fared, failed ones as well, and the seconds of all."""
    return uvloop.run(put_load(server, asked, np.zeros(len(asked)), clients))


def refuse_failed(found: Iterable[RequestOutcome]) -> None:
    """Raises RuntimeError where a request failed."""
    for outcome in found:
        if outcome.error:
            raise RuntimeError(f"a request failed: {outcome.error}")


def in_process(llm: ingot.LLM, asked: Sequence[LoadAsk]) -> float:
    """The seconds of all requests."""
    start = perf_counter()
    llm.generate([prompt(ask) for ask in asked], [params(ask) for ask in asked], use_tqdm=False)
    return perf_counter() - start


def prompt(ask: LoadAsk) -> dict[str, list[int]]:
    assert isinstance(ask.prompt, list)
    return {"prompt_token_ids": ask.prompt}


def params(ask: LoadAsk) -> ingot.SamplingParams:
    return ingot.SamplingParams(temperature=0, max_tokens=ask.output_tokens, ignore_eos=True)


def company(path: Path, streams: int, rounds: int) -> list[tuple[float, float]]:
    """The seconds of so many streams at once, in process and over HTTP, round by round."""
    command = ingot_serve([f"{NAME}={path}"], "--max-model-len", str(MODEL_LEN))
    with ingot.LLM(path, max_model_len=MODEL_LEN) as llm, serving(command) as running:
        return uvloop.run(_company(llm, running, streams, rounds))[1:]  # the first warms up


async def _company(
    llm: ingot.LLM, running: Running, streams: int, rounds: int
) -> list[tuple[float, float]]:
    found = []
    with closing(ConnectionPool(running.server(NAME))) as pool:  # clients keep their connections
        for number in range(rounds + 1):
            asked = asks(number, streams)
            inside, start = in_process(llm, asked), perf_counter()
            refuse_failed(await asyncio.gather(*map(pool.ask, asked)))
            found.append((inside, perf_counter() - start))
    return found


def front(path: Path, rounds: int) -> Iterator[Figure]:
    """What the front adds to 32 streams and to the first token of one."""
    pairs = company(path, 32, rounds)
    inside, http = (median(side) for side in zip(*pairs, strict=True))
    yield Figure("32 streams, in process", 1e3 * inside, "ms")
    yield Figure("32 streams, over HTTP", 1e3 * http, "ms")
    more = median(100 * (http / inside - 1) for inside, http in pairs)
    yield Figure("32 streams, the front adds", more, "%", 15.0, note=f"{rounds} rounds")
    yield from first_token(path, rounds)


def first_token(path: Path, rounds: int) -> Iterator[Figure]:
    """The time to the first token of a single stream, in process and over HTTP."""
    command = ingot_serve([f"{NAME}={path}"], "--max-model-len", str(MODEL_LEN))
    with ingot.LLM(path, max_model_len=MODEL_LEN) as llm, serving(command) as running:
        pairs = uvloop.run(_first_tokens(llm, running, asks(0, rounds * SINGLES, 4)))
    inside, http = (1e3 * median(side) for side in zip(*pairs, strict=True))
    yield Figure("first token, in process", inside, "ms")
    yield Figure("first token, over HTTP", http, "ms")
    more = 1e3 * median(http - inside for inside, http in pairs)
    yield Figure("first token, the front adds", more, "ms", 1.0, note=f"{len(pairs)} requests")


async def _first_tokens(
    llm: ingot.LLM, running: Running, asked: Sequence[LoadAsk]
) -> list[tuple[float, float]]:
    found = []
    with closing(ConnectionPool(running.server(NAME))) as pool:
        for ask in asked:
            start = perf_counter()
            stream = llm.stream(prompt(ask), params(ask))
            next(stream)
            inside = perf_counter() - start
            for _ in stream:
                pass
            outcome = await pool.ask(ask)
            refuse_failed([outcome])
            found.append((inside, outcome.ttft))
    return found[SINGLES // 3 :]  # the first warm up


def rate(path: Path, rounds: int) -> Iterator[Figure]:
    """64 streams over HTTP beside `LLM.generate`."""
    pairs = company(path, 64, rounds)
    for name, side in zip(("LLM.generate", "over HTTP"), zip(*pairs, strict=True), strict=True):
        yield Figure(f"64 streams, {name}", 64 * ANSWER / median(side), "tok/s")
    share = median(100 * inside / http for inside, http in pairs)
    yield Figure("64 streams, of LLM.generate", share, "%", 90.0, "higher", f"{rounds} rounds")
