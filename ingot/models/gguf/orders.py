"""Orders in which llama.cpp stores rows, or columns, that the checkpoint has in another one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ingot.models.checkpoints.formats.quantized import Array, View
from ingot.models.gguf.metadata import Metadata

Places = NDArray[np.int64]


class Order(Protocol):
    """An order of rows or columns."""

    def stored(self, places: Places, count: int) -> Places:
        """Where among `count` stored ones those lie that have these places in the checkpoint."""
        ...


OrderOf = Callable[[Metadata], Order]  # of the tensors of a file


@dataclass(frozen=True, slots=True)
class Pairs:
    """Row j of the first half of a head lies before row j of the second; a head has so many."""

    head: int

    def stored(self, places: Places, count: int) -> Places:
        number, row = places // self.head, places % self.head
        part, j = row // (self.head // 2), row % (self.head // 2)
        return number * self.head + 2 * j + part


@dataclass(frozen=True, slots=True)
class Thirds:
    """All of q, all of k, all of v, where the checkpoint has q, k and v of one head, then of the
    next; each of so many rows."""

    head: int

    def stored(self, places: Places, count: int) -> Places:
        number, row = places // (3 * self.head), places % (3 * self.head)
        part, j = row // self.head, row % self.head
        return part * (count // 3) + number * self.head + j


@dataclass(frozen=True, slots=True)
class Tiled:
    """The first head of each group, then the second of each, where the checkpoint has group after
    group.

    Attributes:
        groups: how many there are; shares: heads of each.
        size: rows of a head.
        first: rows before all heads, which have the same place in both.
    """

    groups: int
    shares: int
    size: int = 1
    first: int = 0

    def stored(self, places: Places, count: int) -> Places:
        head, row = np.divmod(places - self.first, self.size)
        group, share = np.divmod(head, self.shares)
        moved = self.first + (share * self.groups + group) * self.size + row
        return np.where(places < self.first, places, moved)


@dataclass(frozen=True, slots=True)
class ColumnsAsStored:
    """The columns of a matrix, those of a block as neighbours: as they are stored."""

    order: Order
    count: int

    def columns(self, view: View) -> Array | None:
        """The columns [K] of the checkpoint in their stored order; None where that is theirs."""
        own = np.arange(self.count)
        found: Array = np.argsort(self.order.stored(own, self.count))
        return None if np.array_equal(found, own) else found


def pairs(metadata: Metadata) -> Pairs:
    """Of rotated heads."""
    return Pairs(metadata.head_size)


def thirds(metadata: Metadata) -> Thirds:
    """Of queries, keys and values in one."""
    return Thirds(metadata.head_size)
