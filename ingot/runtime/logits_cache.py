"""The last logits of recent prompts, so that a repeated prompt draws its first token at once."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence as Tokens

from ingot.runtime.arrays import Float32
from ingot.runtime.metrics import CacheCounters, Tally

# After this many prompts the cache must have served one in MIN_HIT_RATE ** -1 of them.
WINDOW = 256
MIN_HIT_RATE = 0.01


class LogitsCache:
    """Logits [V] by the tokens of a whole prompt and its salt, at most `max_bytes` of them.

    The one that was used least recently goes first. If fewer than `MIN_HIT_RATE` of `WINDOW`
    prompts were found, copying every prompt's logits does not pay: the cache empties itself and
    stops.
    """

    def __init__(self, max_bytes: int) -> None:
        self._rows: OrderedDict[tuple[bytes, bytes], Float32] = OrderedDict()
        self._tally = Tally(int)
        self.resize(max_bytes)

    def get(self, token_ids: Tokens[int], salt: bytes) -> Float32 | None:
        """The logits of the prompt's last token, read-only; None when they are not there."""
        if self.paused:
            return None
        key = (array("i", token_ids).tobytes(), salt)
        logits = self._rows.get(key)
        if logits is not None:
            self._rows.move_to_end(key)
        self._count(logits is not None)  # which may empty the cache
        return logits

    def put(self, token_ids: Tokens[int], salt: bytes, logits: Float32) -> None:
        """Keeps a copy of the logits, if it pays and they fit."""
        if self.paused:
            return
        key = (array("i", token_ids).tobytes(), salt)
        self._remove(key)
        row = logits.copy()
        row.flags.writeable = False
        if _size(key, row) > self.max_bytes:
            return
        self._rows[key] = row
        self._tally["nbytes"] += _size(key, row)
        while self._tally["nbytes"] > self.max_bytes:
            self._remove(next(iter(self._rows)))
            self._tally["num_evictions"] += 1

    def resize(self, max_bytes: int) -> None:
        """Changes the bound; a cache that had stopped itself starts again."""
        self.max_bytes = max_bytes
        self._window_queries = self._window_hits = 0
        self.paused = max_bytes == 0
        while self._tally["nbytes"] > max_bytes:
            self._remove(next(iter(self._rows)))

    def counters(self) -> CacheCounters:
        return CacheCounters(**self._tally, num_entries=len(self._rows))

    def _count(self, hit: bool) -> None:
        self._tally["num_queries"] += 1
        self._tally["num_hits"] += hit
        self._window_queries += 1
        self._window_hits += hit
        if self._window_queries == WINDOW:
            if self._window_hits < MIN_HIT_RATE * WINDOW:
                self._rows.clear()
                self._tally["nbytes"] = 0
                self.paused = True
            self._window_queries = self._window_hits = 0

    def _remove(self, key: tuple[bytes, bytes]) -> None:
        row = self._rows.pop(key, None)
        self._tally["nbytes"] -= 0 if row is None else _size(key, row)


def _size(key: tuple[bytes, bytes], row: Float32) -> int:
    return len(key[0]) + len(key[1]) + row.nbytes
