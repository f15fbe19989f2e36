"""`Admission`: which requests get in, how long they wait, and how long they stay.

An engine has seats for so many sequences. A few more than that are passed on to it, so that no seat
is empty while the next request is on its way. All others wait here, where their number is bounded.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from time import monotonic

from ingot.serve.asked import Asked
from ingot.serve.edge.line import Line, Place
from ingot.serve.edge.settings import ClientLimits
from ingot.serve.refusal import QueueFull, QueueTimeout, RequestTimeout

_SEATS = 256  # of a model of which nothing is known yet
_KV_FILLS = 4  # how often the waiting tokens may fill the KV cache


@dataclass(slots=True)
class Share:
    """Usage of a key at the moment: requests that wait and that run."""

    num_requests: int = 0
    num_tokens: int = 0


class Admission:
    """The lines of all models. It belongs to one event loop."""

    def __init__(self, limits: ClientLimits, clock: Callable[[], float] = monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._shares: dict[str, Share] = {}
        self._expected: Counter[str] = Counter()
        self.lines: dict[str, Line] = {}

    @contextmanager
    def expect(self, asked: Asked) -> Iterator[None]:
        """Counts a request whose prompt is made inside the block; it enters afterwards.

        Raises QueueFull where it would then be refused anyhow. Making prompts is work, and under
        load it would be told only when those of all before it are made.
        """
        line = self.line(asked)
        line.refuse_hopeless(self._limits.max_queue, queue_tokens(asked, self._limits))
        if asked.key:
            self._refuse_share(asked, self._expected[asked.key])
        line.num_expected += 1
        self._expected[asked.key] += 1
        try:
            yield
        finally:
            line.num_expected -= 1
            self._expected[asked.key] -= 1
            if not self._expected[asked.key]:
                del self._expected[asked.key]

    @asynccontextmanager
    async def enter(self, asked: Asked, elapsed: float = 0.0) -> AsyncIterator[Seats]:
        """Waits for the first seats of a request, and holds them inside the block.

        `elapsed` are seconds that the request has taken so far. Raises QueueFull at once where too
        many wait, and QueueTimeout where its turn did not come in time. A request that takes too
        long is cancelled inside the block, and the block raises RequestTimeout.
        """
        with self._share(asked):
            seats = Seats(self.line(asked), asked, self._limits)
            async with self._in_time(elapsed), seats.wait():
                yield seats

    def line(self, asked: Asked) -> Line:
        """The line of a model, with as many seats as it has now."""
        line = self.lines.get(asked.model)
        if line is None:
            line = self.lines[asked.model] = Line(self._clock)
        seats = asked.facts.max_num_seqs if asked.facts else _SEATS
        line.num_seats = seats + max(seats // 4, 2)
        return line

    @contextmanager
    def _share(self, asked: Asked) -> Iterator[None]:
        """Counts a request to its key. Raises QueueFull for a key that has its share."""
        if not asked.key:
            yield
            return
        self._refuse_share(asked, 0)
        share = self._shares.setdefault(asked.key, Share())
        share.num_requests += 1
        share.num_tokens += asked.num_tokens
        try:
            yield
        finally:
            share.num_requests -= 1
            share.num_tokens -= asked.num_tokens
            if not share.num_requests:
                del self._shares[asked.key]

    def _refuse_share(self, asked: Asked, num_expected: int) -> None:
        """Raises QueueFull for a key that has its share, so many expected requests included."""
        share = self._shares.get(asked.key, Share())
        most_requests, most_tokens = self._limits.max_key_requests, self._limits.max_key_tokens
        num_requests = share.num_requests + num_expected
        if most_requests and num_requests >= most_requests:
            found = f"this key has {num_requests} requests under way, the most that it may"
        elif most_tokens and share.num_tokens + asked.num_tokens > most_tokens:
            found = (
                f"this key has requests of {share.num_tokens} tokens under way, and this one has "
                f"{asked.num_tokens}; it may have {most_tokens}"
            )
        else:
            return
        wait = self.line(asked).retry_after()
        raise QueueFull(found, hint="Try again when some are done.", retry_after=wait)

    @asynccontextmanager
    async def _in_time(self, elapsed: float) -> AsyncIterator[None]:
        """Bounds what its block takes. Raises RequestTimeout."""
        limit = self._limits.request_timeout
        deadline = asyncio.timeout(max(limit - elapsed, 0.0) if limit else None)
        try:
            async with deadline:
                yield
        except TimeoutError:
            if not deadline.expired():
                raise
            found = f"the request took longer than {limit:g} seconds"
            raise RequestTimeout(found) from None


def queue_tokens(asked: Asked, limits: ClientLimits) -> int:
    """The tokens that may wait for a model; 0: any number."""
    if limits.max_queue_tokens is not None:
        return limits.max_queue_tokens
    facts = asked.facts
    return _KV_FILLS * facts.num_pages * facts.page_size if facts else 0


class Seats:
    """The seats of a request. Its jobs take theirs one after another, each when its turn comes, so
    that a request of many jobs holds up others for no longer than one of few.

    `wait` takes those of the first job, and only that can be refused.
    """

    def __init__(self, line: Line, asked: Asked, limits: ClientLimits) -> None:
        self._line = line
        self._asked = asked
        self._limits = limits
        self._turn = asyncio.Lock()
        self._first: Place | None = None

    @asynccontextmanager
    async def wait(self) -> AsyncIterator[None]:
        """Waits for the seats of the first job. Raises QueueFull and QueueTimeout."""
        limit = self._limits.queue_timeout
        place, turn = self._join(admitted=False)
        try:
            async with asyncio.timeout(limit or None) if not turn.is_set() else nullcontext():
                await self._seated(place, turn)
        except TimeoutError:
            found = f"no seat became free within {limit:g} seconds"
            wait = self._line.retry_after()
            raise QueueTimeout(found, hint="Try again later.", retry_after=wait) from None
        self._first = place
        try:
            yield
        finally:
            if self._first is not None:  # no job has taken it
                self._line.leave(self._first)

    @asynccontextmanager
    async def take(self) -> AsyncIterator[None]:
        """Waits for the seats of the next job, and holds them inside the block."""
        # One job at a time, so that a request of many jobs has a single place in the line.
        async with self._turn:
            place, self._first = self._first, None
            if place is None:
                place, turn = self._join(admitted=True)
                await self._seated(place, turn)
        try:
            yield
        finally:
            self._line.leave(place)

    def _join(self, *, admitted: bool) -> tuple[Place, asyncio.Event]:
        """A place in the line, and what is set when its turn has come. Raises QueueFull."""
        asked, turn = self._asked, asyncio.Event()
        seats, tokens = (
            -(-total // asked.num_jobs) for total in (asked.num_sequences, asked.num_tokens)
        )
        place = Place(asked.key, seats, tokens, asked.priority, turn.set, admitted)
        self._line.join(place, self._limits.max_queue, queue_tokens(asked, self._limits))
        return place, turn

    async def _seated(self, place: Place, turn: asyncio.Event) -> None:
        """Waits until the turn of a place has come; who stops waiting leaves the line."""
        try:
            await turn.wait()
        except BaseException:
            self._line.leave(place)
            raise
