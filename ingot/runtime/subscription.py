"""Subscriptions: what a caller holds of its requests, and the ways to read what becomes of them.

`complete` and `TextStream` have their thread wait. A `Feed` tells of the requests of many askers
together; `AsyncLLM` and servers have what it tells put into a `Mailbox`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from time import perf_counter
from weakref import ref

from ingot.errors import IngotError, InternalError, describe
from ingot.runtime.engine_thread import EngineThread, Listener
from ingot.runtime.metrics import EngineCounters
from ingot.runtime.output import RequestOutput, TextDelta
from ingot.runtime.params import SamplingParams
from ingot.runtime.progress import end_progress, is_watched, show_progress
from ingot.runtime.prompts import Prompt
from ingot.runtime.request import Request

# A request by its number, with what is new of it, or why it was refused.
News = list[tuple[int, Request | IngotError]]
Tell = Callable[[News], None]
MakeRequest = Callable[[Prompt, SamplingParams, int], Request]
Deltas = SimpleQueue[TextDelta | Exception | None]  # and in the end an error or None

_PROGRESS_SECONDS = 0.1  # from one look at the progress to the next


class Subscription:
    """Requests run while their subscription lives: giving it up aborts those that are not finished.

    It is given up when it is closed, and when it is lost in whatever way: by a return, an error,
    Ctrl-C at any point. A context manager.
    """

    def __init__(self, thread: EngineThread) -> None:
        self._thread = thread
        # The queue's own method is the callback: losing a subscription runs no Python code, which a
        # signal could interrupt.
        self._key: ref[object] = ref(self, thread.inbox.put)

    def adding(self, requests: list[Request], listen: Listener) -> Callable[[], None]:
        """The work of the engine's thread that adds the requests, or raises why it adds none.

        `listen` is called there with every request that has got further.
        """
        return partial(self._thread.requests.add, self._key, requests, listen)

    def close(self) -> None:
        """Gives the requests up. May be called twice."""
        self._thread.inbox.put(self._key)

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def complete(
    thread: EngineThread, requests: list[Request], *, progress: bool
) -> list[RequestOutput]:
    """Runs requests to their ends. Raises the first error that refused or ended one.

    `progress` is shown where stderr is a terminal.
    """
    if not requests:
        return []
    left, ended = len(requests), SimpleQueue[None]()

    def listen(request: Request) -> None:
        nonlocal left
        if request.finished:
            left -= 1
            if not left:
                ended.put(None)

    with Subscription(thread) as subscription:
        thread.ask(subscription.adding(requests, listen))
        if progress and is_watched():
            _watch(requests, ended)
        else:
            ended.get()
    # Nobody changes a finished request any more.
    return [request.output() for request in requests]


class TextStream:
    """Iterates over a request's deltas. Closing it early, or losing it, aborts the request.

    The engine does not wait for the reader: what is not read yet is kept. `model` owns the
    engine's thread and lives as long as the stream does.
    """

    def __init__(self, thread: EngineThread, request: Request, model: object) -> None:
        self._thread = thread
        self._model = model
        self._deltas: Deltas = SimpleQueue()
        self._ended = False
        self._request = request
        self._subscription = Subscription(thread)
        try:
            thread.ask(self._subscription.adding([request], partial(_send, self._deltas)))
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> TextStream:
        return self

    def __next__(self) -> TextDelta:
        if self._ended:
            raise StopIteration
        self._thread.process.refuse_fork()
        self._thread.requests.refuse_closed()
        self._thread.refuse_current()
        item = self._deltas.get()
        if isinstance(item, TextDelta):
            return item
        self.close()
        raise item if isinstance(item, Exception) else StopIteration

    def output(self) -> RequestOutput:
        """The whole request as far as it has come."""
        if self._request.finished:
            return self._request.output()
        return self._thread.ask(partial(self._thread.requests.output, self._request))

    def close(self) -> None:
        """Aborts the request unless it is finished."""
        self._ended = True
        self._subscription.close()


def _send(deltas: Deltas, request: Request) -> None:
    """Puts what is new of a request; at its end, the error or None."""
    for completion in request.completions if request.error is None else ():
        if completion.has_news:
            deltas.put(completion.take_delta())
    if request.finished or request.error is not None:
        deltas.put(request.error)


class Feed:
    """Requests under numbers that their asker gives them, each used once.

    `tell` is called in the engine's thread, once for all requests that got further together. An
    engine with overlap calls it while the kernels run the next step. First tokens and ends are told
    at once. What comes between them waits where steps are short, of less than a quarter of
    `interval`: until a step ends so many seconds after all that was new had been told. Safe to use
    from several threads.
    """

    def __init__(
        self, thread: EngineThread, make_request: MakeRequest, tell: Tell, interval: float = 0.0
    ) -> None:
        self._thread = thread
        self._make_request = make_request
        self._tell = tell
        self._interval = interval
        self._told_at = self._looked_at = 0.0  # all that was new; whether to tell
        self._subscriptions: dict[int, Subscription] = {}
        self._news: dict[int, Request | IngotError] = {}  # of the engine's thread alone
        thread.requests.after_news(self._flush)

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
        self.run(number, self._make_request(prompt, params, priority), stream=stream)

    def run(self, number: int, request: Request, *, stream: bool = True) -> None:
        """Runs a request that was checked; see `add`."""
        subscription = self._subscriptions[number] = Subscription(self._thread)
        work = subscription.adding([request], partial(self._listen, number, stream))
        self._thread.call(work, partial(self._added, number, request))

    def drop(self, number: int) -> None:
        """Aborts a request unless it has ended. What is being told meanwhile may still come."""
        subscription = self._subscriptions.pop(number, None)
        if subscription is not None:
            subscription.close()

    def count(self, answer: Callable[[EngineCounters], object]) -> None:
        """Has the engine's thread call `answer` between two steps."""
        requests = self._thread.requests
        self._thread.post(lambda: answer(requests.counters()))

    def _added(self, number: int, request: Request, _: object, error: BaseException | None) -> None:
        if error is not None:
            request.refused()
            known = error if isinstance(error, IngotError) else InternalError(describe(error))
            self._news[number] = known
            self._flush()

    def _listen(self, number: int, stream: bool, request: Request) -> None:
        if stream or request.finished or request.error is not None:
            self._news[number] = request

    def _flush(self) -> None:
        news = self._due()
        held = self._subscriptions
        wanted = [(number, what) for number, what in news.items() if number in held]
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
    """Returns whether news is a first token, an end or an error."""
    return (
        isinstance(what, IngotError) or what.nothing_delivered or what.finished or bool(what.error)
    )


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
