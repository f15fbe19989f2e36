"""Requests on an engine: who asked for which sequence, and who is told. One thread only."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakMethod, ref

from ingot.errors import IngotError, InternalError, RequestError, UsageError, describe
from ingot.runtime.arrays import Float32
from ingot.runtime.completion import CompletionReader
from ingot.runtime.config import EngineConfig
from ingot.runtime.engine import Engine
from ingot.runtime.forced import Take
from ingot.runtime.metrics import EngineCounters
from ingot.runtime.output import RequestOutput
from ingot.runtime.params import SamplingParams
from ingot.runtime.request import Request
from ingot.runtime.sequence import Sequence
from ingot.runtime.tokenizer import Tokenizer

MakeEngine = Callable[..., Engine]
OnStep = Callable[[EngineCounters], None]
Listener = Callable[[Request], None]

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


class Session:
    """The requests of an engine. Everything here runs in the engine's thread.

    `make_engine` makes the engine, which delivers to the function that it is given as `receive`.
    """

    def __init__(self, make_engine: MakeEngine, on_step: OnStep | None = None) -> None:
        self.engine = make_engine(receive=self._receive)
        self._on_step = on_step
        self.closed = False
        self._requests: dict[str, Request] = {}
        self._owners: dict[int, tuple[Request, CompletionReader]] = {}
        self._claims: dict[int, tuple[ref[object], list[Request]]] = {}
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

    def add(self, claim: ref[object], tickets: list[Ticket], listen: Listener) -> list[Request]:
        """Adds all requests or, with an error, none."""
        added: list[Request] = []
        try:
            self.refuse_closed()
            self._refuse_used([t.request_id for t in tickets if t.request_id is not None])
            self.engine.scheduler.check_room(sum(ticket.params.n for ticket in tickets))
            for ticket in tickets:
                added.append(self._add(ticket, listen))
        except BaseException as error:
            self._forget(added)
            if isinstance(error, IngotError):
                raise
            raise InternalError(describe(error)) from error
        self._claims[id(claim)] = claim, added
        return added

    def give_up(self, claim: ref[object]) -> None:
        """Aborts the requests of a claim that are not finished, and forgets all of them."""
        self._forget(self._claims.pop(id(claim), (claim, []))[1])

    def abort(self, request_id: str) -> None:
        """Ends a request and tells its listener. An unknown or finished one does nothing."""
        request = self._requests.get(request_id)
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
        for request in list(self._requests.values()):
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
        """How the engine fares."""
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

    def _add(self, ticket: Ticket, listen: Listener) -> Request:
        first = self.engine.add(
            ticket.token_ids, ticket.params, priority=ticket.priority, salt=ticket.salt
        )
        try:
            sequences = [first, *first.siblings]
            completions = [CompletionReader(self.engine, s, ticket.tokenizer) for s in sequences]
        except BaseException:
            self.engine.abort(first)
            raise
        name = ticket.request_id or next(n for n in self._names if n not in self._requests)
        request = Request(name, ticket.prompt, completions, listen)
        self._requests[name] = request
        for completion in completions:
            self._owners[completion.sequence.sequence_id] = request, completion
        return request

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
        try:
            request.listen(request)
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
                self._owners.pop(completion.sequence.sequence_id, None)

    def _refuse_used(self, names: list[str]) -> None:
        for name in names:
            if name in self._requests or names.count(name) > 1:
                raise RequestError(
                    f"request_id {name!r:.80} is in use",
                    hint="Give every request an id of its own, or none.",
                )


def _closed_error() -> UsageError:
    return UsageError("this model is closed", hint="Open it again with LLM(path).")
