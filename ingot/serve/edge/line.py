"""`Line`: the requests for one model in the order in which they get seats, without a loop."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from ingot.serve.refusal import QueueFull

_LEVEL = 64  # requests of the own key that a level of priority is worth, as in the engine
_TOKENS = 1024  # that count as one more request
_MEMORY = 0.9  # how much of the mean time in a seat is kept when one more is known
_MOST_SECONDS = 60  # that a client is told to wait


@dataclass(slots=True, eq=False)
class Place:
    """A place in a line for one job of a request; `on_turn` is called when it gets its seats."""

    key: str
    num_seats: int
    num_tokens: int
    priority: int
    on_turn: Callable[[], None]
    admitted: bool = False  # a further job of a request that is inside is never refused
    start: int = 0
    rank: int = 0
    number: int = 0
    seated_at: float | None = None

    def __lt__(self, other: Place) -> bool:
        return (self.rank, self.number) < (other.rank, other.number)


class Line:
    """Requests that wait for seats, and those that have them.

    Keys take turns: each has a clock that runs by what its requests take, and the request whose
    key's clock is behind comes first (start-time fair queueing, Goyal 1996). A level of priority
    sets it back or forth by 64 requests, so that none waits for ever.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._waiting: list[Place] = []
        self._ends: dict[str, int] = {}
        self._now = 0
        self._count = 0
        self._mean_seconds = 0.0
        self.num_seats = 0
        self.num_taken = 0
        self.num_running = 0
        self.num_waiting_tokens = 0
        self.num_expected = 0  # requests whose prompts are being made, and which join then

    @property
    def num_waiting(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    def join(self, place: Place, most_requests: int, most_tokens: int) -> None:
        """Puts a request in the line, and gives it its seats if it is its turn already.

        Raises QueueFull where it would have to wait and there is no room; 0: there always is.
        """
        if not place.admitted and (self._waiting or not self._fits(place)):
            self._check_room(place.num_tokens, most_requests, most_tokens)
        self._count += 1
        place.number = self._count
        place.start = max(self._now, self._ends.get(place.key, 0))
        self._ends[place.key] = place.start + 1 + place.num_tokens // _TOKENS
        place.rank = place.start + _LEVEL * place.priority
        heapq.heappush(self._waiting, place)
        self.num_waiting_tokens += place.num_tokens
        self._advance()

    def refuse_hopeless(self, most_requests: int, most_tokens: int) -> None:
        """Raises QueueFull for a request that would find no room, whatever it asks for, if all that
        are expected join before it."""
        if not self._waiting:
            free = max(self.num_seats - self.num_taken, 0)
            if most_requests and self.num_expected >= most_requests + free:
                raise self._full(
                    f"{self.num_expected} requests for this model are being read, the most that may"
                )
        elif most_requests and self.num_waiting + self.num_expected >= most_requests:
            raise self._full(
                f"{self.num_waiting + self.num_expected} requests wait for this model, the most "
                "that may"
            )
        else:
            self._check_room(1, most_requests, most_tokens)

    def leave(self, place: Place) -> None:
        """Takes a request out of its seats, or out of the line."""
        if place.seated_at is None:
            self._waiting.remove(place)
            heapq.heapify(self._waiting)
            self.num_waiting_tokens -= place.num_tokens
        else:
            held = self._clock() - place.seated_at
            kept = _MEMORY if self._mean_seconds else 0.0
            self._mean_seconds = kept * self._mean_seconds + (1 - kept) * held
            self.num_taken -= place.num_seats
            self.num_running -= 1
        self._advance()

    def retry_after(self) -> int:
        """Seconds until there may be room: as long as those in line now need for their seats."""
        waiting = sum(place.num_seats for place in self._waiting)
        seconds = self._mean_seconds * (waiting + 1) / max(self.num_seats, 1)
        return min(max(round(seconds), 1), _MOST_SECONDS)

    def _fits(self, place: Place) -> bool:
        # One that takes more seats than there are runs alone.
        return not self.num_taken or self.num_taken + place.num_seats <= self.num_seats

    def _advance(self) -> None:
        while self._waiting and self._fits(self._waiting[0]):
            place = heapq.heappop(self._waiting)
            self._now = max(self._now, place.start)
            self.num_waiting_tokens -= place.num_tokens
            self.num_taken += place.num_seats
            self.num_running += 1
            place.seated_at = self._clock()
            place.on_turn()
        if not self._waiting:  # nobody is owed anything for seats that nobody else wanted
            self._ends.clear()
            self._now = 0

    def _check_room(self, num_tokens: int, most_requests: int, most_tokens: int) -> None:
        if most_requests and len(self._waiting) >= most_requests:
            found = f"{len(self._waiting)} requests wait for this model, the most that may"
        elif most_tokens and self.num_waiting_tokens + num_tokens > most_tokens:
            found = (
                f"requests of {self.num_waiting_tokens} tokens wait for this model, and this one "
                f"has {num_tokens}; at most {most_tokens} may wait"
            )
        else:
            return
        raise self._full(found)

    def _full(self, found: str) -> QueueFull:
        return QueueFull(found, hint="Try again later.", retry_after=self.retry_after())
