"""Streams of a server as a process, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Semaphore
from typing import Any, NamedTuple

import httpx

from tests.support.serve_process import events


class Told(NamedTuple):
    """What a stream said: tokens, how it ended, and the code of an error."""

    tokens: list[int]
    finish: str | None
    error: str | None


def body_of(model: str, prompt: Sequence[int], max_tokens: int) -> dict[str, Any]:
    return {
        "model": model, "prompt": list(prompt), "max_tokens": max_tokens, "temperature": 0,
        "ignore_eos": True, "return_token_ids": True,
    }  # fmt: skip


def asked(http: httpx.Client, body: dict[str, Any]) -> Told:
    """The same of an answer that comes as a whole."""
    answer = http.post("/v1/completions", json=body)
    if answer.status_code != 200:
        return Told([], None, answer.json()["error"]["code"])
    (choice,) = answer.json()["choices"]
    return Told(choice["token_ids"], choice["finish_reason"], None)


def told(http: httpx.Client, body: dict[str, Any], begun: Semaphore | None = None) -> Told:
    """Reads a stream to its end, which must be in order. `begun` is released at its first token."""
    tokens: list[int] = []
    finish = error = None
    with http.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
        if answer.status_code != 200:
            answer.read()
            return Told([], None, answer.json()["error"]["code"])
        for event in events(answer.iter_lines()):
            if "error" in event:
                error = event["error"]["code"]
                continue
            (choice,) = event["choices"]
            tokens += choice["token_ids"]
            finish = choice["finish_reason"]
            if begun is not None:
                begun.release()
                begun = None
    return Told(tokens, finish, error)


@contextmanager
def streaming(
    http: httpx.Client, bodies: Sequence[dict[str, Any]], wait: int
) -> Iterator[list[Future[Told]]]:
    """Streams that go on beside the block, which begins when so many have told a token."""
    begun = Semaphore(0)
    with ThreadPoolExecutor(len(bodies)) as pool:
        futures = [pool.submit(told, http, body, begun) for body in bodies]
        for _ in range(wait):
            assert begun.acquire(timeout=60)
        yield futures
