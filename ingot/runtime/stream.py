"""A request's text as it comes, for `LLM.stream`."""

from __future__ import annotations

from ingot.runtime.output import RequestOutput, TextDelta
from ingot.runtime.request import Request
from ingot.runtime.session import Session


class TextStream:
    """Iterates over a request's deltas. Closing it early, or losing it, aborts the request.

    `model` owns the session and lives as long as the stream does.
    """

    def __init__(self, request: Request, session: Session, model: object) -> None:
        self._request = request
        self._session = session
        self._model = model
        self._ended = False

    def __iter__(self) -> TextStream:
        return self

    def __next__(self) -> TextDelta:
        if self._ended:
            raise StopIteration
        try:
            delta = self._session.pull(self._request)
        except BaseException:
            self.close()
            raise
        if delta is None:
            self.close()
            raise StopIteration
        if self._request.finished and not self._request.has_news:
            self.close()
        return delta

    def output(self) -> RequestOutput:
        """The whole request as far as it has come."""
        return self._session.read(self._request)

    def close(self) -> None:
        """Aborts the request unless it is finished."""
        if not self._ended:
            self._ended = True
            self._session.forget([self._request])

    def __del__(self) -> None:
        # This can run at any time, even within a step: it only leaves a note.
        if not self._ended:
            self._session.lose(self._request)
