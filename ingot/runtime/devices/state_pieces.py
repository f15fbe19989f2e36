"""Bytes of states in pieces: of each array the pages in order, or the record of one slot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ingot.artifact.plan import StateArray
from ingot.runtime.executor import Places

PIECE_BYTES = 1 << 20  # a piece is still in the processor's cache when it is hashed

Bytes = npt.NDArray[np.uint8]


class Piece(NamedTuple):
    """Units of an array, pages or slots, by their ids; `nbytes` is that of each."""

    array: int
    nbytes: int
    ids: Sequence[int]

    @property
    def size(self) -> int:
        return self.nbytes * len(self.ids)

    @property
    def is_run(self) -> bool:
        """True if the units lie side by side."""
        return all(b == a + 1 for a, b in pairwise(self.ids))


def pieces_of(arrays: Sequence[StateArray], places: Places) -> Iterator[Piece]:
    """All bytes of the places, in the order in which they are kept: array by array."""
    slots = [] if places.slot is None else [places.slot]
    for number, array in enumerate(arrays):
        ids = places.pages if array.kind == "paged" else slots
        count = max(1, PIECE_BYTES // max(1, array.nbytes))
        for begin in range(0, len(ids), count):
            yield Piece(number, array.nbytes, ids[begin : begin + count])


class HostStates:
    """States in the host's memory: `units` are its arrays, uint8 [pages or slots, bytes]."""

    def __init__(self, arrays: Sequence[StateArray], units: Sequence[Bytes]) -> None:
        self._arrays, self._units = arrays, units

    def read(self, places: Places, take: Callable[[memoryview], Any]) -> None:
        """See `Executor.read_states`. Units that lie side by side are handed out as they lie."""
        for piece in pieces_of(self._arrays, places):
            units, ids = self._units[piece.array], piece.ids
            if piece.is_run:
                take(_flat(units[ids[0] : ids[0] + len(ids)]))
            else:
                take(_flat(np.take(units, ids, axis=0)))

    def write(self, places: Places, fill: Callable[[memoryview], Any]) -> None:
        """See `Executor.write_states`. Units that lie side by side are filled where they lie."""
        for piece in pieces_of(self._arrays, places):
            units, ids = self._units[piece.array], piece.ids
            if piece.is_run:
                fill(_flat(units[ids[0] : ids[0] + len(ids)]))
            else:
                given = np.empty((len(ids), piece.nbytes), np.uint8)
                fill(_flat(given))
                units[[*ids]] = given


def _flat(units: Bytes) -> memoryview:
    return units.reshape(-1).data
