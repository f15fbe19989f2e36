"""`Feed`: requests of many askers, whose news is told together."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter

from ingot.errors import IngotError, InternalError, describe
from ingot.runtime.claim import Claim
from ingot.runtime.engine_thread import EngineThread
from ingot.runtime.metrics import EngineCounters
from ingot.runtime.params import SamplingParams
from ingot.runtime.prompts import Prompt
from ingot.runtime.request import Request
from ingot.runtime.session import Ticket

# A request by its number, with what is new of it, or why it was refused.
News = list[tuple[int, Request | IngotError]]
Tell = Callable[[News], None]
MakeTicket = Callable[[Prompt, SamplingParams, int], Ticket]


class Feed:
    """Requests under numbers that their asker gives them, each used once.

    `tell` is called in the engine's thread, once for all requests that got further together. An
    engine with overlap calls it while the kernels run the next step. First tokens and ends are told
    at once. What comes between them waits where steps are short, of less than a quarter of
    `interval`: until a step ends so many seconds after all that was new had been told. Safe to use
    from several threads.
    """

    def __init__(
        self, thread: EngineThread, make_ticket: MakeTicket, tell: Tell, interval: float = 0.0
    ) -> None:
        self._thread = thread
        self._make_ticket = make_ticket
        self._tell = tell
        self._interval = interval
        self._told_at = self._looked_at = 0.0  # all that was new; whether to tell
        self._claims: dict[int, Claim] = {}
        self._news: dict[int, Request | IngotError] = {}  # of the engine's thread alone
        thread.session.after_news(self._flush)

    def add(
        self,
        number: int,
        prompt: Prompt,
        params: SamplingParams,
        *,
        priority: int = 0,
        stream: bool = True,
    ) -> None:
        """Runs a request. Without `stream` nothing is told of it before its end.

        Raises RequestError for one that cannot be served as given. What only the engine's thread
        can see, such as a full queue, is told.
        """
        ticket = self._make_ticket(prompt, params, priority)
        claim = self._claims[number] = Claim(self._thread)
        listen = self._listen if stream else self._listen_for_end
        work = claim.adding([ticket], partial(listen, number))
        self._thread.call(work, partial(self._added, number))

    def drop(self, number: int) -> None:
        """Aborts a request unless it has ended. What is being told meanwhile may still come."""
        claim = self._claims.pop(number, None)
        if claim is not None:
            claim.close()

    def count(self, answer: Callable[[EngineCounters], object]) -> None:
        """Has the engine's thread call `answer` between two steps."""
        session = self._thread.session
        self._thread.post(lambda: answer(session.counters()))

    def _added(self, number: int, _: object, error: BaseException | None) -> None:
        if error is not None:
            known = error if isinstance(error, IngotError) else InternalError(describe(error))
            self._news[number] = known
            self._flush()

    def _listen(self, number: int, request: Request) -> None:
        self._news[number] = request

    def _listen_for_end(self, number: int, request: Request) -> None:
        if request.finished or request.error is not None:
            self._news[number] = request

    def _flush(self) -> None:
        news = self._due()
        wanted = [(number, what) for number, what in news.items() if number in self._claims]
        if not wanted:
            return
        self._tell(wanted)
        for number, what in wanted:
            if isinstance(what, IngotError) or what.finished:
                self.drop(number)

    def _due(self) -> dict[int, Request | IngotError]:
        """Takes what is to be told now."""
        now, news, looked_at = perf_counter(), self._news, self._looked_at
        self._looked_at = now
        if now - self._told_at >= self._interval or now - looked_at >= self._interval / 4:
            self._told_at, self._news = now, {}
            return news
        urgent = {number: what for number, what in news.items() if _is_urgent(what)}
        self._news = {number: what for number, what in news.items() if number not in urgent}
        return urgent


def _is_urgent(what: Request | IngotError) -> bool:
    """Whether news is a first token, an end or an error."""
    return isinstance(what, IngotError) or what.is_untold or what.finished or bool(what.error)
