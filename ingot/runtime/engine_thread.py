"""Requests on an engine, and the one thread that touches it: who asked for what, and who is told.

All other threads post jobs to it, and only ever wait. Python runs signal handlers in the main
thread alone, so no Ctrl-C can fall into a step. Whoever posts a job holds no lock meanwhile:
`SimpleQueue` is written in C, and an interrupted caller leaves nothing behind that the engine's
thread could wait for.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TypeVar, cast
from weakref import WeakMethod, ref

from ingot.errors import (
    IngotError,
    InternalError,
    RequestError,
    ResourceError,
    UsageError,
    describe,
)
from ingot.runtime.arrays import Float32
from ingot.runtime.config import EngineConfig
from ingot.runtime.engine import Engine
from ingot.runtime.forced import Take
from ingot.runtime.metrics import EngineCounters
from ingot.runtime.output import RequestOutput
from ingot.runtime.process import Process
from ingot.runtime.request import CompletionReader, Request
from ingot.runtime.sequence import Sequence
from ingot.runtime.sessions.state import SessionState

MakeEngine = Callable[..., Engine]
OnStep = Callable[[EngineCounters], None]
Listener = Callable[[Request], None]
T = TypeVar("T")
Job = Callable[[], object]
# A reference instead of a job: the subscription or the session that it names is given up.
Inbox = SimpleQueue[Job | ref[object] | None]

IDLE_SECONDS = 0.05  # after which nobody is expected to come at once

_log = logging.getLogger(__name__)


class Requests:
    """The requests of an engine. Everything here runs in the engine's thread.

    `make_engine` makes the engine, which delivers to the function that it is given as `receive`.
    """

    def __init__(self, make_engine: MakeEngine, on_step: OnStep | None = None) -> None:
        self.engine = make_engine(receive=self._receive)
        self._on_step = on_step
        self.closed = False
        self._requests: dict[str, tuple[Request, Listener]] = {}
        self._owners: dict[int, tuple[Request, CompletionReader]] = {}
        self._taken: dict[int, tuple[ref[object], list[Request]]] = {}  # by subscription
        self._sessions: dict[int, tuple[ref[object], SessionState]] = {}
        self._names = map(str, itertools.count())
        self._after_news: list[WeakMethod[Callable[[], None]]] = []

    def after_news(self, call: Callable[[], None]) -> None:
        """Has a method called when all listeners have been told what came at once.

        Its object is not kept alive.
        """
        self._after_news.append(WeakMethod(call))

    @property
    def has_unfinished(self) -> bool:
        return self.engine.has_unfinished

    def add(self, key: ref[object], requests: list[Request], listen: Listener) -> None:
        """Adds all requests of a subscription or, with an error, none."""
        added: list[Request] = []
        try:
            self.refuse_closed()
            self._refuse_used([each.request_id for each in requests if each.request_id])
            self.engine.scheduler.check_room(sum(each.params.n for each in requests))
            for request in requests:
                self._add(request, listen)
                added.append(request)
        except BaseException as error:
            self._forget(added)
            if isinstance(error, IngotError):
                raise
            raise InternalError(describe(error)) from error
        # By id: a weak reference compares and hashes as its object, which may be gone.
        self._taken[id(key)] = key, added

    def give_up(self, key: ref[object]) -> None:
        """Aborts the requests of a subscription that are not finished, and forgets all of them; or
        closes a session."""
        self._forget(self._taken.pop(id(key), (key, []))[1])
        _, state = self._sessions.pop(id(key), (key, None))
        if state is not None and not self.closed:
            self.engine.sessions.close(state)

    def keep(self, key: ref[object], make: Callable[[], SessionState]) -> SessionState:
        """Makes a session, which is closed when its key is given up. Raises UsageError once
        closed, and what `make` raises."""
        self.refuse_closed()
        state = make()
        self._sessions[id(key)] = key, state
        return state

    def abort(self, request_id: str) -> None:
        """Ends a request and tells its listener. An unknown or finished one does nothing."""
        request, _ = self._requests.get(request_id, (None, None))
        if request is not None:
            self.engine.deliver()
            request.abort()
            self._tell(request)
            self._end_of_news()

    def step(self) -> None:
        """Runs a step. If it fails, all requests fail, and the engine serves later ones."""
        try:
            self.engine.step()
        except BaseException as error:
            _log.exception("a step failed")
            self.fail_all(
                error if isinstance(error, IngotError) else InternalError(describe(error))
            )
        if self._on_step is not None:
            try:
                self._on_step(self.engine.counters())
            except BaseException:  # it serves no request, so none fails by it
                _log.exception("on_step raised; it is not called again")
                self._on_step = None

    def touch_ahead(self) -> bool:
        """Takes a piece of the memory that the next prompts will fill; False: none is left."""
        return self.engine.touch_ahead()

    def fail_all(self, error: IngotError) -> None:
        """Ends every request with an error."""
        self.engine.deliver()
        self.engine.fail_all(error)
        for request, _ in list(self._requests.values()):
            if not request.finished:
                for completion in request.completions:
                    completion.finished = True
                self._tell(request)
        self._end_of_news()

    def logits(
        self,
        sequences: list[list[int]],
        chunk_tokens: int | None,
        stopped: Callable[[], bool],
        first: list[int],
    ) -> list[Float32]:
        """Logits of each sequence from a position on; see `Engine.logits`."""
        self.refuse_closed()
        return self.engine.logits(sequences, chunk_tokens, stopped, first)

    def rows(
        self,
        program: str,
        sequences: list[list[int]],
        first: list[int],
        takes: list[Take],
        chunk_tokens: int | None,
        stopped: Callable[[], bool],
    ) -> None:
        """Gives what a program returns for each sequence; see `Engine.rows`."""
        self.refuse_closed()
        self.engine.rows(program, sequences, first, takes, chunk_tokens, stopped)

    def output(self, request: Request) -> RequestOutput:
        """The request so far. Raises the error that ended it."""
        self.engine.deliver()
        return request.output()

    def counters(self) -> EngineCounters:
        """Counters of the engine."""
        return self.engine.counters()

    def configure(self, config: EngineConfig) -> None:
        """Replaces the engine's switches."""
        self.refuse_closed()
        self.engine.config = config

    def close(self) -> None:
        """Ends all requests with an error, then closes the engine; a second call does nothing."""
        if not self.closed:
            self.closed = True
            try:
                self.fail_all(_closed_error())
            finally:
                self.engine.close()

    def refuse_closed(self) -> None:
        """Raises UsageError after `close`."""
        if self.closed:
            raise _closed_error()

    def _add(self, request: Request, listen: Listener) -> None:
        first = self.engine.start(request)
        try:
            request.follow(self.engine, first)
        except BaseException:
            self.engine.abort(first)
            raise
        if not request.request_id:
            request.request_id = next(n for n in self._names if n not in self._requests)
        self._requests[request.request_id] = request, listen
        for completion in request.completions:
            self._owners[completion.sequence.sequence_id] = request, completion

    def _receive(self, sequences: list[Sequence]) -> None:
        for sequence in sequences:
            self._advance(sequence)
        self._end_of_news()

    def _advance(self, sequence: Sequence) -> None:
        request, completion = self._owners.get(sequence.sequence_id, (None, None))
        if request is None or completion is None:
            return
        try:
            completion.advance()
        except BaseException as error:  # what a tokenizer raises is its request's trouble alone
            self.engine.fail(
                sequence, RequestError(f"its tokens cannot be turned into text: {describe(error)}")
            )
            completion.finished = True
        self._tell(request)

    def _tell(self, request: Request) -> None:
        _, listen = self._requests[request.request_id]
        try:
            listen(request)
        except BaseException:  # an event loop that is gone: nobody listens
            _log.exception("who listened to request %s raised", request.request_id)

    def _end_of_news(self) -> None:
        for method in self._after_news:
            call = method()
            try:
                if call is not None:
                    call()
            except BaseException:
                _log.exception("who was told of the end of news raised")

    def _forget(self, requests: list[Request]) -> None:
        for request in requests:
            request.abort()
            self._requests.pop(request.request_id, None)
            for completion in request.completions:
                owner = self._owners.get(completion.sequence.sequence_id)
                if owner is not None and owner[0] is request:  # not a later one of its session
                    del self._owners[completion.sequence.sequence_id]

    def _refuse_used(self, names: list[str]) -> None:
        for name in names:
            if name in self._requests or names.count(name) > 1:
                raise RequestError(
                    f"request_id {name!r:.80} is in use",
                    hint="Give every request an id of its own, or none.",
                )


class EngineThread:
    """Does the jobs that it is given, in order, and runs steps while there are requests.

    Raises ResourceError where no thread can be started; then the engine is closed.
    """

    def __init__(self, requests: Requests) -> None:
        self.inbox: Inbox = SimpleQueue()
        self.requests = requests
        self.process = Process()
        # A daemon, or Python would wait for it before the model's finalizer can end it.
        self._thread = threading.Thread(
            target=_serve, args=(requests, self.inbox), name="ingot-engine", daemon=True
        )
        try:
            self._thread.start()
        except RuntimeError as error:  # the only one that it raises of a thread that is new
            requests.close()
            raise ResourceError(
                "no thread can be started for the engine",
                hint="Raise the limit of processes, or free some memory.",
            ) from error

    @property
    def is_current(self) -> bool:
        """Returns whether the caller runs inside a step: in `on_step` or a logits processor."""
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
        if self.requests.closed:  # the thread may have looked into its inbox for the last time
            _drain(self.requests, self.inbox)

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


def _serve(requests: Requests, inbox: Inbox) -> None:
    try:
        while True:
            if requests.has_unfinished and inbox.empty():
                requests.step()
                continue
            item = _wait(requests, inbox)
            if item is None:
                return
            _do(requests, item)
            del item  # it may hold the model, which can be forgotten while this thread waits
    finally:
        requests.close()
        _drain(requests, inbox)


def _wait(requests: Requests, inbox: Inbox) -> Job | ref[object] | None:
    """The next item. What comes while memory is taken ahead waits for a piece of it at most."""
    with suppress(Empty):
        return inbox.get(timeout=IDLE_SECONDS)
    while inbox.empty() and requests.touch_ahead():
        pass
    return inbox.get()


def _drain(requests: Requests, inbox: Inbox) -> None:
    """Does what is left: jobs that need an open engine learn that it is closed."""
    with suppress(Empty):
        while True:
            item = inbox.get(block=False)
            if item is not None:
                _do(requests, item)


def _do(requests: Requests, item: Job | ref[object]) -> None:
    try:
        if isinstance(item, ref):
            requests.give_up(item)
        else:
            item()
    except BaseException:
        _log.exception("a job of the engine's thread raised")


def _closed_error() -> UsageError:
    return UsageError("this model is closed", hint="Open it again with LLM(path).")
