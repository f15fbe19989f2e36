"""The one thread that touches an engine. All others post jobs to it, and only ever wait.

Python runs signal handlers in the main thread alone, so no Ctrl-C can fall into a step. Whoever
posts a job holds no lock meanwhile: `SimpleQueue` is written in C, and an interrupted caller
leaves nothing behind that the engine's thread could wait for.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TypeVar, cast
from weakref import ref

from ingot.errors import ResourceError, UsageError
from ingot.runtime.process import Process
from ingot.runtime.session import Session

T = TypeVar("T")
Job = Callable[[], object]
# A reference instead of a job: the claim that it names is given up.
Inbox = SimpleQueue[Job | ref[object] | None]

IDLE_SECONDS = 0.05  # after which nobody is expected to come at once

_log = logging.getLogger(__name__)


class EngineThread:
    """Does the jobs that it is given, in order, and runs steps while there are requests.

    Raises ResourceError where no thread can be started; then the session is closed.
    """

    def __init__(self, session: Session) -> None:
        self.inbox: Inbox = SimpleQueue()
        self.session = session
        self.process = Process()
        # A daemon, or Python would wait for it before the model's finalizer can end it.
        self._thread = threading.Thread(
            target=_serve, args=(session, self.inbox), name="ingot-engine", daemon=True
        )
        try:
            self._thread.start()
        except RuntimeError as error:  # the only one that it raises of a thread that is new
            session.close()
            raise ResourceError(
                "no thread can be started for the engine",
                hint="Raise the limit of processes, or free some memory.",
            ) from error

    @property
    def is_current(self) -> bool:
        """Whether the caller runs inside a step: in `on_step` or a logits processor."""
        return threading.current_thread() is self._thread

    def refuse_current(self) -> None:
        """Raises UsageError inside a step, which cannot wait for its own end."""
        if self.is_current:
            raise UsageError(
                "a step waits for this call, and the call would wait for the step",
                hint="on_step and logits processors may call counters() and close(), and set "
                "config. Do the rest in another thread.",
            )

    def post(self, job: Job) -> None:
        """Has the thread do something before its next step. What it raises is logged.

        Raises UsageError in a forked child, which has none of its parent's threads.
        """
        self.process.refuse_fork()
        self.inbox.put(job)
        if self.session.closed:  # the thread may have looked into its inbox for the last time
            _drain(self.session, self.inbox)

    def call(
        self, work: Callable[[], T], answer: Callable[[T | None, BaseException | None], object]
    ) -> None:
        """Posts a job; `answer` gets what it returned and what it raised. Not inside a step."""
        self.refuse_current()

        def job() -> None:
            try:
                answer(work(), None)
            except BaseException as error:
                answer(None, error)

        self.post(job)

    def ask(self, work: Callable[[], T]) -> T:
        """Posts a job, waits for it, and returns or raises what it did. Not inside a step."""
        answers: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()
        self.call(work, lambda *answer: answers.put(answer))
        result, error = answers.get()
        if error is not None:
            raise error
        return cast(T, result)

    def close(self) -> None:
        """Ends all requests with an error, closes the engine and ends the thread.

        May be called twice. Inside a step, all that comes true when the step is over; in a
        forked child, where nothing of it lives, nothing happens.
        """
        if self.process.is_current:
            self.inbox.put(None)
            if not self.is_current:
                self._thread.join()


def _serve(session: Session, inbox: Inbox) -> None:
    try:
        while True:
            if session.has_unfinished and inbox.empty():
                session.step()
                continue
            item = _wait(session, inbox)
            if item is None:
                return
            _do(session, item)
            del item  # it may hold the model, which can be forgotten while this thread waits
    finally:
        session.close()
        _drain(session, inbox)


def _wait(session: Session, inbox: Inbox) -> Job | ref[object] | None:
    """The next item. What comes while memory is taken ahead waits for a piece of it at most."""
    with suppress(Empty):
        return inbox.get(timeout=IDLE_SECONDS)
    while inbox.empty() and session.touch_ahead():
        pass
    return inbox.get()


def _drain(session: Session, inbox: Inbox) -> None:
    """Does what is left: jobs that need an open engine learn that it is closed."""
    with suppress(Empty):
        while True:
            item = inbox.get(block=False)
            if item is not None:
                _do(session, item)


def _do(session: Session, item: Job | ref[object]) -> None:
    try:
        if isinstance(item, ref):
            session.give_up(item)
        else:
            item()
    except BaseException:
        _log.exception("a job of the engine's thread raised")
