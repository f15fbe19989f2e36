"""The memory of states: pages and slots, and having pages before they are needed."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np

from ingot.artifact.plan import StateArray
from ingot.artifact.tensors import ALIGNMENT
from ingot.runtime.devices.memory import Region, align
from ingot.runtime.devices.state_pieces import HostStates
from ingot.runtime.executor import Places
from ingot.runtime.initial_record import Copy, InitialRecord
from ingot.runtime.pool_size import PoolSize

MOST_AHEAD_BYTES = 128 << 20


class Pool:
    """The arrays of all states, in the order of the plan: each of as many pages or slots.

    The system gives memory when it is touched. Where it takes long over it, a prompt would wait
    that long for its first token. So pieces of free pages are touched ahead, while nobody waits:
    as many pages as a step of `step_pages` fills, but at most MOST_AHEAD_BYTES of them.
    """

    def __init__(self, arrays: Sequence[StateArray], size: PoolSize, step_pages: int) -> None:
        counts = {"paged": size.num_pages, "slotted": size.num_slots}
        sizes = [align(array.nbytes * counts[array.kind], ALIGNMENT) for array in arrays]
        self.region = Region(sum(sizes), "the KV cache")
        self.addresses = [*accumulate(sizes[:-1], initial=self.region.address)]
        self.num_pages = size.num_pages
        placed = [*zip(arrays, self.addresses, strict=False)]
        self._pages = [(begin, array.nbytes) for array, begin in placed if array.kind == "paged"]
        self._slots = [(begin, array.nbytes) for array, begin in placed if array.kind == "slotted"]
        page_bytes = sum(nbytes for _, nbytes in self._pages)
        self.num_ahead = min(step_pages, MOST_AHEAD_BYTES // max(1, page_bytes))
        self._arrays, self._counts = arrays, counts
        self._num_touched = 0  # pieces, a page of an array each: page by page, as pages are used

    def touch_ahead(self, num_used: int, num_ready: int) -> bool:
        """Touches a piece that is missing; False if none is, or the system touches none."""
        num_arrays = len(self._pages)
        num_pages = min(self.num_pages, num_used + self.num_ahead - num_ready)
        piece = max(self._num_touched, num_used * num_arrays)
        if piece >= num_pages * num_arrays:
            return False
        page, number = divmod(piece, num_arrays)
        begin, nbytes = self._pages[number]
        done = self.region.touch(begin + page * nbytes, nbytes)
        self._num_touched = piece + 1 if done else self.num_pages * num_arrays
        return done

    @property
    def states(self) -> HostStates:
        """The bytes of all arrays. To be let go before the memory is given back."""
        first = self.region.offset - self.region.address
        units = [
            np.frombuffer(
                self.region.map, np.uint8, array.nbytes * self._counts[array.kind], first + begin
            ).reshape(-1, array.nbytes)
            for array, begin in zip(self._arrays, self.addresses, strict=False)
        ]
        return HostStates(self._arrays, units)

    def copy(self, copies: Iterable[Copy]) -> None:
        """Copies records to slots, in this order."""
        for source, to in copies:
            if isinstance(source, InitialRecord):
                self.states.write(Places([], to), source.filler())
                continue
            for begin, nbytes in self._slots:
                ctypes.memmove(begin + to * nbytes, begin + source * nbytes, nbytes)
