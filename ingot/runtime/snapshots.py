"""Snapshots of records: by what they are found, and which is given up first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ingot.runtime.metrics import SnapshotCounters, Tally
from ingot.runtime.prefix_cache import PrefixPage

# The page at whose end it was taken, for whoever begins with the same tokens; or the sequence that
# alone goes on from it.
Name = PrefixPage | int


@dataclass(slots=True, eq=False)
class Snapshot:
    """A record as it was after `position` tokens, in a slot.

    `above` is the last page before its own. It `stays` when its sequence leaves a later one. The
    next shorter snapshot of its chain is `base`; `since` is how old the cache was when it was used.
    """

    slot: int
    position: int
    stays: bool = True
    name: Name = -1
    above: PrefixPage | None = None
    base: Snapshot | None = None
    since: int = 0

    @property
    def cost(self) -> int:
        """The tokens that are computed again if it is lost."""
        return self.position - (self.base.position if self.base else 0)

    @property
    def is_lost(self) -> bool:
        """True if its page was evicted, so that nobody finds it."""
        return isinstance(self.name, PrefixPage) and not self.name.known


class Snapshots:
    """The snapshots that can be found.

    All are of one size, so what one is worth is its cost. What is given up first is lost already,
    or has the least sum of its cost and its age at its last use; the least recently used of equals
    goes first. The cache ages to the sum of each that it gives up, so that what was dear once does
    not stay for ever: GreedyDual (Young, "The k-server dual and loose competitiveness for paging",
    1994).
    """

    def __init__(self) -> None:
        self._all: dict[Name, Snapshot] = {}  # the least recently used first
        self._age = 0
        self._tally = Tally(int)

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Snapshot]:
        return iter(self._all.values())

    def get(self, name: Name) -> Snapshot | None:
        return self._all.get(name)

    def add(self, snapshot: Snapshot, name: Name, above: PrefixPage | None) -> None:
        """Makes it known under a name that is free."""
        snapshot.name, snapshot.above, snapshot.since = name, above, self._age
        snapshot.base = self._nearest(above)
        self._all[name] = snapshot
        for other in self._all.values():
            if other.base is snapshot.base and other.position > snapshot.position:
                other.base = self._nearest(other.above)

    def use(self, name: Name) -> Snapshot:
        """Notes that a sequence goes on from it: from now on it is worth more than its sequence's
        newest."""
        snapshot = self._all[name] = self._all.pop(name)
        snapshot.since, snapshot.stays = self._age, True
        return snapshot

    def remove(self, snapshot: Snapshot) -> int:
        """Forgets it; returns its slot."""
        del self._all[snapshot.name]
        for other in self._all.values():
            if other.base is snapshot:
                other.base = snapshot.base
        return snapshot.slot

    def give_up(self, kept: Snapshot | None = None) -> int:
        """Gives up the one that is worth least, but not `kept`; returns its slot."""
        worst = min((each for each in self._all.values() if each is not kept), key=_worth)
        self._age = max(self._age, _worth(worst))
        self._tally["num_evictions"] += 1
        return self.remove(worst)

    def clear(self) -> list[int]:
        """Forgets those that are found by tokens; returns their slots."""
        found = [each for each in self._all.values() if isinstance(each.name, PrefixPage)]
        return [self.remove(each) for each in found]

    def count(self, num_known: int, num_found: int) -> None:
        """Notes a sequence that goes on after `num_found` tokens and has pages of `num_known`."""
        self._tally["num_hits"] += num_found > 0
        self._tally["num_misses"] += num_found == 0
        self._tally["num_wanted"] += num_known > num_found
        self._tally["num_lost_tokens"] += max(0, num_known - num_found)

    def counters(self) -> SnapshotCounters:
        return SnapshotCounters(**self._tally, num_entries=len(self._all))

    def _nearest(self, page: PrefixPage | None) -> Snapshot | None:
        """The snapshot at that page, or at the last page before it that has one."""
        while page is not None and page not in self._all:
            page = page.parent
        return None if page is None else self._all[page]


def _worth(snapshot: Snapshot) -> int:
    return -1 if snapshot.is_lost else snapshot.since + snapshot.cost
