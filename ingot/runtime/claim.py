"""Claims: what a caller holds of its requests."""

from __future__ import annotations

from functools import partial
from queue import Empty, SimpleQueue
from weakref import ref

from ingot.runtime.engine_thread import EngineThread
from ingot.runtime.output import RequestOutput
from ingot.runtime.progress import EVERY_SECONDS, Progress
from ingot.runtime.request import Request
from ingot.runtime.session import Listener, Reply, Ticket


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

    def add(self, tickets: list[Ticket], reply: Reply, listen: Listener) -> None:
        """Posts the requests. Raises UsageError inside a step and in a forked child.

        Args:
            reply: is called once, with the requests or with the error that refused all of them.
            listen: is called with every request that has got further. Both run in the engine's
                thread.
        """
        self._thread.refuse_current()
        self._thread.post(partial(self._thread.session.add, self._key, tickets, reply, listen))

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
    mailbox: SimpleQueue[list[Request] | Exception | None] = SimpleQueue()
    with Claim(thread) as claim:
        claim.add(tickets, mailbox.put, _count_down(len(tickets), mailbox))
        requests = mailbox.get()
        if not isinstance(requests, list):
            raise requests or AssertionError("requests end after they have begun")
        shown = Progress(requests, wanted=progress)
        try:
            while not _arrives(mailbox, EVERY_SECONDS if shown.is_shown else None):
                shown.update()
        finally:
            shown.close()
    # Nobody changes a finished request any more.
    return [request.output() for request in requests]


def _count_down(count: int, mailbox: SimpleQueue[list[Request] | Exception | None]) -> Listener:
    """A listener that wakes the caller when the last of its requests is finished."""
    left = count

    def listen(request: Request) -> None:
        nonlocal left
        if request.finished:
            left -= 1
            if not left:
                mailbox.put(None)

    return listen


def _arrives(mailbox: SimpleQueue[list[Request] | Exception | None], seconds: float | None) -> bool:
    try:
        mailbox.get(timeout=seconds)
    except Empty:
        return False
    return True
