"""Chooses formats matrix by matrix: the least divergence for some bytes, or the fewest bytes for a
divergence.

Costs in nats add up, and so do bytes. So this is a knapsack with one item a matrix, or one for
those that become one matrix. The ways to store an item lie on a convex curve of cost over bytes;
steps along all curves are taken in the order of what they save a byte. A step of an embedding can
be larger than what is left when its turn comes. So the largest items are tried in each of their
ways, and the others fill what these leave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from math import fsum

from ingot.compiler.quantization.costs import Way

# Rounding rows may cost that share of what rounding the matrices costs, and so many nats anyway.
SHARE_OF_ROWS = 0.1
FREE_ROWS = 1e-3
LARGEST = 2  # items that are tried in each way: an embedding, and a head


@dataclass(frozen=True, slots=True)
class Item:
    """Matrices that are stored alike.

    Attributes:
        names: their parameters.
        nbytes, costs: of all of them, by the way that they are stored.
    """

    names: tuple[str, ...]
    nbytes: Mapping[Way, int]
    costs: Mapping[Way, float]

    def curve(self) -> list[Way]:
        """The ways that are best for their bytes, fewest first: the lower convex hull."""
        hull: list[Way] = []
        for way in sorted(self.nbytes, key=lambda w: (self.nbytes[w], self.costs[w])):
            if hull and (
                self.costs[way] >= self.costs[hull[-1]] or self.nbytes[way] == self.nbytes[hull[-1]]
            ):
                continue
            while len(hull) > 1 and self.saved(hull[-2], hull[-1]) <= self.saved(hull[-1], way):
                hull.pop()
            hull.append(way)
        return hull

    def only(self, way: Way) -> Item:
        """The same with one way to store it."""
        return Item(self.names, {way: self.nbytes[way]}, {way: self.costs[way]})

    def saved(self, before: Way, after: Way) -> float:
        """Nats that a step saves a byte."""
        more = self.nbytes[after] - self.nbytes[before]
        return (self.costs[before] - self.costs[after]) / more


@dataclass(frozen=True, slots=True)
class Choice:
    """How each matrix is stored, by its parameter, and what that takes and costs."""

    ways: Mapping[str, Way]
    nbytes: int
    cost: float


@dataclass(slots=True)
class _Filling:
    """A knapsack on its way: the way of each item, and the sums."""

    items: Sequence[Item]
    ways: dict[int, Way] = field(default_factory=dict)
    nbytes: int = 0

    def take(self, index: int, way: Way) -> None:
        item = self.items[index]
        if index in self.ways:
            self.nbytes -= item.nbytes[self.ways[index]]
        self.ways[index] = way
        self.nbytes += item.nbytes[way]

    def choice(self) -> Choice:
        by_name = {n: w for i, w in self.ways.items() for n in self.items[i].names}
        return Choice(by_name, self.nbytes, fsum(self.costs()))

    def costs(self) -> list[float]:
        return [self.items[i].costs[way] for i, way in self.ways.items()]


def smallest(items: Sequence[Item]) -> Choice:
    """The choice of fewest bytes."""
    return _fill(items, lambda filling, after: False)


def within_bytes(items: Sequence[Item], most: int) -> Choice:
    """The choice of least cost among those of at most so many bytes; the smallest if none is."""

    def rank(choice: Choice) -> tuple[int, float, int]:
        return max(choice.nbytes - most, 0), choice.cost, choice.nbytes

    filled = [_fill(tried, lambda _, after: after <= most) for tried in _around_largest(items)]
    return min(filled, key=rank)


def within_cost(items: Sequence[Item], most: float) -> Choice:
    """The choice of fewest bytes among those that cost at most so much; the finest if none does."""

    def rank(choice: Choice) -> tuple[float, int]:
        return choice.cost if choice.cost > most else 0.0, choice.nbytes

    def costs_more(filling: _Filling, after: int) -> bool:
        return fsum(filling.costs()) > most

    return min((_fill(tried, costs_more) for tried in _around_largest(items)), key=rank)


def _around_largest(items: Sequence[Item]) -> Iterator[list[Item]]:
    """The items, in turn with each combination of ways of the largest."""
    largest = sorted(range(len(items)), key=lambda i: (-max(items[i].nbytes.values()), i))[:LARGEST]
    for ways in product(*(items[i].curve() for i in largest)):
        tried = [*items]
        for i, way in zip(largest, ways, strict=True):
            tried[i] = items[i].only(way)
        yield tried


def _fill(items: Sequence[Item], goes_on: Callable[[_Filling, int], bool]) -> Choice:
    """Takes steps along the curves, those that save most a byte first, while `goes_on` says so of
    what there is and the bytes after the step."""
    filling, steps = _Filling(items), list[tuple[float, int, Way]]()
    for index, item in enumerate(items):
        first, *_ = curve = item.curve()
        filling.take(index, first)
        steps += [(item.saved(a, b), index, b) for a, b in pairwise(curve)]
    stopped = set[int]()  # a step that is left out ends its curve
    for _, index, way in sorted(steps, key=lambda step: (-step[0], step[1])):
        item = items[index]
        after = filling.nbytes + item.nbytes[way] - item.nbytes[filling.ways[index]]
        if index not in stopped and goes_on(filling, after):
            filling.take(index, way)
        else:
            stopped.add(index)
    return filling.choice()


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows that some matrices multiply: what rounding them to int8 costs, and the products."""

    names: tuple[str, ...]
    cost: float
    products: float


def finer_rows(rows: Sequence[Rows], stored: float) -> frozenset[str]:
    """The matrices that multiply 16 bits, so that rounding the other rows costs little beside
    `stored`, the cost of rounding the matrices: those first where a product saves most."""
    most = SHARE_OF_ROWS * stored + FREE_ROWS
    left, chosen = fsum(each.cost for each in rows), list[str]()
    for each in sorted(rows, key=lambda r: (-r.cost / max(r.products, 1), r.names)):
        if left <= most:
            break
        chosen += each.names
        left -= each.cost
    return frozenset(chosen)
