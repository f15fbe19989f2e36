"""The memory of KV pages, and having it before it is needed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from ingot.artifact.tensors import ALIGNMENT
from ingot.runtime.devices.memory import Region, align

MOST_AHEAD_BYTES = 128 << 20


class PagePool:
    """An array of pages for each state: `page_sizes` are the bytes of a page in each of them.

    The system gives memory when it is touched. Where it takes long over it, a prompt would wait
    that long for its first token. So pieces of free pages are touched ahead, while nobody waits:
    as many pages as a step of `step_pages` fills, but at most MOST_AHEAD_BYTES of them.
    """

    def __init__(self, page_sizes: Sequence[int], num_pages: int, step_pages: int) -> None:
        sizes = [align(size * num_pages, ALIGNMENT) for size in page_sizes]
        self.region = Region(sum(sizes), "the KV cache")
        self.addresses = [*accumulate(sizes[:-1], initial=self.region.address)]
        self.num_pages = num_pages
        self.num_ahead = min(step_pages, MOST_AHEAD_BYTES // max(1, sum(page_sizes)))
        self._page_sizes = page_sizes
        self._num_touched = 0  # pieces, a page of a state each: page by page, as pages are used

    def touch_ahead(self, num_used: int, num_ready: int) -> bool:
        """Touches a piece that is missing; False if none is, or the system touches none."""
        num_states = len(self._page_sizes)
        num_pages = min(self.num_pages, num_used + self.num_ahead - num_ready)
        piece = max(self._num_touched, num_used * num_states)
        if piece >= num_pages * num_states:
            return False
        page, state = divmod(piece, num_states)
        size = self._page_sizes[state]
        done = self.region.touch(self.addresses[state] + page * size, size)
        self._num_touched = piece + 1 if done else self.num_pages * num_states
        return done
