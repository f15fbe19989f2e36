"""A request's text as it comes, for `LLM.stream`."""

from __future__ import annotations

from functools import partial
from queue import SimpleQueue

from ingot.runtime.claim import Claim
from ingot.runtime.engine_thread import EngineThread
from ingot.runtime.output import RequestOutput, TextDelta
from ingot.runtime.request import Request
from ingot.runtime.session import Ticket

Mailbox = SimpleQueue[TextDelta | Exception | None]  # deltas, and in the end an error or None


class TextStream:
    """Iterates over a request's deltas. Closing it early, or losing it, aborts the request.

    The engine does not wait for the reader: what is not read yet is kept. `model` owns the
    engine's thread and lives as long as the stream does.
    """

    def __init__(self, thread: EngineThread, ticket: Ticket, model: object) -> None:
        self._thread = thread
        self._model = model
        self._mailbox: Mailbox = SimpleQueue()
        self._ended = False
        self._claim = Claim(thread)
        try:
            adding = self._claim.adding([ticket], partial(_send, self._mailbox))
            self._request = thread.ask(adding)[0]
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> TextStream:
        return self

    def __next__(self) -> TextDelta:
        if self._ended:
            raise StopIteration
        self._thread.process.refuse_fork()
        self._thread.session.refuse_closed()
        self._thread.refuse_current()
        item = self._mailbox.get()
        if isinstance(item, TextDelta):
            return item
        self.close()
        raise item if isinstance(item, Exception) else StopIteration

    def output(self) -> RequestOutput:
        """The whole request as far as it has come."""
        if self._request.finished:
            return self._request.output()
        return self._thread.ask(partial(self._thread.session.output, self._request))

    def close(self) -> None:
        """Aborts the request unless it is finished."""
        self._ended = True
        self._claim.close()


def _send(mailbox: Mailbox, request: Request) -> None:
    """Puts what is new of a request into its reader's mailbox; at its end, the error or None."""
    for completion in request.completions if request.error is None else ():
        if completion.has_news:
            mailbox.put(completion.take_delta())
    if request.finished or request.error is not None:
        mailbox.put(request.error)
