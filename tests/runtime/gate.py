"""Holding the engine's thread at a chosen point, and asking what it still has to do."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any


class Gate:
    """A logits processor at which the engine's thread stops at one call until it is let through.

    `reached` tells that it is there. The tokens drawn are as without it.
    """

    def __init__(self, at: int = 0) -> None:
        self._calls = 0
        self._at = at
        self.reached, self._open = threading.Event(), threading.Event()

    def __call__(self, generated, row):
        if self._calls == self._at:
            self.reached.set()
            assert self._open.wait(60)
        self._calls += 1
        return row

    def open(self) -> None:
        self._open.set()


@contextmanager
def held(llm) -> Iterator[SimpleQueue[Any]]:
    """Keeps the engine's thread between two steps during the block, which gets what is posted to
    it meanwhile."""
    reached, go_on = threading.Event(), threading.Event()
    llm._thread.post(lambda: (reached.set(), go_on.wait()))
    reached.wait()
    try:
        yield llm._thread.inbox
    finally:
        go_on.set()


class Halt:
    """An engine's thread that stands in a step, once it has `reached` it."""

    def __init__(self, llm) -> None:
        self.reached = threading.Event()
        self.inbox: SimpleQueue[Any] = llm._thread.inbox

    def until_posted(self) -> None:
        """Waits until something is posted to the thread."""
        while not self.inbox.qsize():
            os.sched_yield()


@contextmanager
def halted(llm, steps: int) -> Iterator[Halt]:
    """Has the engine halt in the step after so many, until the block ends."""
    executor, halt, go_on = llm._engine._executor, Halt(llm), threading.Event()
    submit, count = executor.submit, itertools.count()

    def slow(*arguments, **options):
        if next(count) >= steps:
            halt.reached.set()
            go_on.wait()
        return submit(*arguments, **options)

    executor.submit = slow
    try:
        yield halt
    finally:
        del executor.submit
        go_on.set()


def is_idle(llm) -> bool:
    """Whether the engine has let go of every request, once it has done what was posted."""
    llm.counters()
    requests = llm._thread.requests
    held = (requests._requests, requests._owners, requests._taken)
    pages = llm._engine.pages
    pages.check()
    return not any(held) and not requests.has_unfinished and pages.num_free == pages.num_pages
