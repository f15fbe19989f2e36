"""Claims: what a caller holds of its requests, and the call that waits for their ends."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from time import perf_counter
from weakref import ref

from ingot.runtime.engine_thread import EngineThread
from ingot.runtime.output import RequestOutput
from ingot.runtime.request import Request
from ingot.runtime.session import Listener, Ticket

_PROGRESS_SECONDS = 0.1  # from one look at the progress to the next


class Claim:
    """Requests run while their claim lives: giving it up aborts those that are not finished.

    A claim is given up when it is closed, and when it is lost in whatever way: by a return, an
    error, Ctrl-C at any point. A context manager.
    """

    def __init__(self, thread: EngineThread) -> None:
        self._thread = thread
        # The queue's own method is the callback: losing a claim runs no Python code, which a
        # signal could interrupt.
        self._key: ref[object] = ref(self, thread.inbox.put)

    def adding(self, tickets: list[Ticket], listen: Listener) -> Callable[[], list[Request]]:
        """The work of the engine's thread that adds the requests, or raises why it adds none.

        `listen` is called there with every request that has got further.
        """
        return partial(self._thread.session.add, self._key, tickets, listen)

    def close(self) -> None:
        """Gives the claim up. May be called twice."""
        self._thread.inbox.put(self._key)

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def complete(thread: EngineThread, tickets: list[Ticket], *, progress: bool) -> list[RequestOutput]:
    """Runs requests to their ends. Raises the first error that refused or ended one.

    `progress` is shown where stderr is a terminal.
    """
    if not tickets:
        return []
    left, ended = len(tickets), SimpleQueue[None]()

    def listen(request: Request) -> None:
        nonlocal left
        if request.finished:
            left -= 1
            if not left:
                ended.put(None)

    with Claim(thread) as claim:
        requests = thread.ask(claim.adding(tickets, listen))
        if progress and _is_watched():
            _watch(requests, ended)
        else:
            ended.get()
    # Nobody changes a finished request any more.
    return [request.output() for request in requests]


def _watch(requests: list[Request], ended: SimpleQueue[None]) -> None:
    """Shows on a line of stderr how far requests have come, until they have ended."""
    began = perf_counter()

    def show() -> None:
        num_finished = sum(request.finished for request in requests)
        num_tokens = sum(request.num_generated for request in requests)
        rate = num_tokens / max(perf_counter() - began, 1e-9)
        show_progress(
            f"{num_finished}/{len(requests)} prompts, {num_tokens} tokens, {rate:.0f} tok/s"
        )

    try:
        while True:
            with suppress(Empty):
                return ended.get(timeout=_PROGRESS_SECONDS)
            show()
    finally:
        show()
        end_progress()


def show_progress(line: str) -> None:
    """Writes a line over the last one, where stderr is a terminal."""
    if _is_watched():
        print(f"\r{line:<60}", end="", file=sys.stderr, flush=True)


def end_progress() -> None:
    """Leaves the line that was shown last."""
    if _is_watched():
        print(file=sys.stderr)


def _is_watched() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()
