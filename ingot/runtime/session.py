"""Requests on an engine, from any thread: who waits for a request runs steps for everyone."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ingot.errors import IngotError, InternalError, RequestError, UsageError
from ingot.runtime.completion import Completion
from ingot.runtime.config import EngineConfig
from ingot.runtime.engine import Engine
from ingot.runtime.executor import Float32
from ingot.runtime.metrics import EngineCounters
from ingot.runtime.output import RequestOutput, TextDelta
from ingot.runtime.params import SamplingParams
from ingot.runtime.request import Request
from ingot.runtime.sequence import Sequence
from ingot.runtime.tokenizer import Tokenizer
from ingot.runtime.turns import FairLock

OnStep = Callable[[EngineCounters], None]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """What a request asks for, checked. `tokenizer` None: its outputs have no text."""

    prompt: str | None
    token_ids: list[int]
    params: SamplingParams
    tokenizer: Tokenizer | None
    priority: int = 0
    salt: bytes = b""
    request_id: str | None = None
    listener: Callable[[Request], None] | None = None


class Session:
    """Guards an engine by a lock that is held for one step at a time, in turns."""

    def __init__(self, engine: Engine, on_step: OnStep | None = None) -> None:
        self._engine = engine
        self._on_step = on_step
        self._lock = FairLock()
        self._closed = False
        self._requests: dict[str, Request] = {}
        self._owners: dict[int, tuple[Request, Completion]] = {}
        self._lost: deque[Request] = deque()  # nobody waits for them; aborted before a step
        self._num_named = 0
        engine.receive = self._receive

    @property
    def has_unfinished(self) -> bool:
        return self._engine.has_unfinished

    def add(self, tickets: list[Ticket]) -> list[Request]:
        """Adds all requests or, with an error, none. Raises RequestError or QueueFullError."""
        with self._lock:
            self._refuse_closed()
            self._abort_lost()
            self._refuse_used([t.request_id for t in tickets if t.request_id is not None])
            self._engine.check_room(sum(ticket.params.n for ticket in tickets))
            return [self._add(ticket) for ticket in tickets]

    def step(self, requests: list[Request]) -> None:
        """Runs a step, unless the requests are all finished and only wait to be handed over."""
        with self._lock:
            self._refuse_closed()
            self._abort_lost()
            if all(c.sequence.finished for request in requests for c in request.completions):
                self._engine.deliver()
            if not requests or not all(request.finished for request in requests):
                self._step()

    def pull(self, request: Request) -> TextDelta | None:
        """The next delta, after as many steps as it takes; None when the request is at its end.

        Raises the error that ended it.
        """
        while True:
            with self._lock:
                self._refuse_closed()
                self._abort_lost()
                self._engine.deliver()
                delta = request.take_delta()
                if delta is not None or request.finished:
                    return delta
                self._step()
                self._engine.deliver()

    def read(self, request: Request) -> RequestOutput:
        """The request as far as it has come. Raises the error that ended it."""
        with self._lock:
            self._engine.deliver()
            return request.output()

    def forget(self, requests: list[Request]) -> None:
        """Aborts those that are not finished, and lets go of all of them."""
        with self._lock:
            for request in requests:
                self._forget(request)

    def lose(self, request: Request) -> None:
        """Forgets a request before the next step; takes no lock, so it can be called anywhere."""
        self._lost.append(request)

    def abort(self, request_id: str) -> None:
        """Ends a request; one that is unknown or finished is fine."""
        with self._lock:
            request = self._requests.get(request_id)
            if request is not None:
                self._engine.deliver()
                request.abort()
                if request.listener is not None:
                    request.listener(request)

    def fail_all(self, error: Exception) -> None:
        """Ends every request with an error."""
        failure = error if isinstance(error, IngotError) else InternalError(f"{error!r:.200}")
        with self._lock:
            for request in list(self._requests.values()):
                for completion in request.completions:
                    if not completion.sequence.finished:
                        self._engine.fail(completion.sequence, failure)
                    completion.advance()
                if request.listener is not None:
                    request.listener(request)

    def logits(self, token_ids: list[int], chunk_tokens: int | None) -> Float32:
        with self._lock:
            self._refuse_closed()
            self._abort_lost()
            return self._engine.logits(token_ids, chunk_tokens)

    def counters(self) -> EngineCounters:
        with self._lock:
            return self._engine.counters()

    def configure(self, config: EngineConfig) -> None:
        with self._lock:
            self._refuse_closed()
            self._engine.config = config

    def close(self) -> None:
        """Closes the engine; all later calls that need it raise UsageError."""
        with self._lock:
            self._closed = True
            self._engine.close()

    def _add(self, ticket: Ticket) -> Request:
        first = self._engine.add(
            ticket.token_ids, ticket.params, priority=ticket.priority, salt=ticket.salt
        )
        sequences = [first, *first.siblings]
        completions = [Completion(self._engine, s, ticket.tokenizer) for s in sequences]
        name = ticket.request_id or self._new_name()
        request = Request(name, ticket.prompt, completions, ticket.listener)
        self._requests[name] = request
        for completion in completions:
            self._owners[completion.sequence.sequence_id] = request, completion
        return request

    def _step(self) -> None:
        self._engine.step()
        if self._on_step is not None:
            try:
                self._on_step(self._engine.counters())
            except Exception:  # it serves no request, so none fails by it
                _log.exception("on_step raised; it is not called again")
                self._on_step = None

    def _receive(self, sequence: Sequence) -> None:
        request, completion = self._owners.get(sequence.sequence_id, (None, None))
        if request is not None and completion is not None:
            completion.advance()
            if request.listener is not None:
                request.listener(request)

    def _forget(self, request: Request) -> None:
        request.abort()
        self._requests.pop(request.request_id, None)
        for completion in request.completions:
            self._owners.pop(completion.sequence.sequence_id, None)

    def _abort_lost(self) -> None:
        while self._lost:
            self._forget(self._lost.popleft())

    def _new_name(self) -> str:
        while True:
            name = str(self._num_named)
            self._num_named += 1
            if name not in self._requests:
                return name

    def _refuse_used(self, names: list[str]) -> None:
        for name in names:
            if name in self._requests or names.count(name) > 1:
                raise RequestError(
                    f"request_id {name!r:.80} is in use",
                    hint="Give every request an id of its own, or none.",
                )

    def _refuse_closed(self) -> None:
        if self._closed:
            raise UsageError("this model is closed", hint="Open it again with LLM(path).")
