"""Claims: what a caller holds of its requests."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from weakref import ref

from ingot.runtime.engine_thread import EngineThread
from ingot.runtime.output import RequestOutput
from ingot.runtime.progress import EVERY_SECONDS, Progress
from ingot.runtime.request import Request
from ingot.runtime.session import Listener, Ticket


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
    """Runs requests to their ends. Raises the first error that refused or ended one."""
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
        shown = Progress(requests, wanted=progress)
        try:
            while not _arrives(ended, EVERY_SECONDS if shown.is_shown else None):
                shown.update()
        finally:
            shown.close()
    # Nobody changes a finished request any more.
    return [request.output() for request in requests]


def _arrives(mailbox: SimpleQueue[None], seconds: float | None) -> bool:
    try:
        mailbox.get(timeout=seconds)
    except Empty:
        return False
    return True
