"""The last logits of recent prompts, so that a repeated prompt draws its first token at once."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence as Tokens

import xxhash

from ingot.runtime.arrays import Float32
from ingot.runtime.metrics import CacheCounters, Tally

# After this many prompts the cache must have served one in MIN_HIT_RATE ** -1 of them.
WINDOW = 256
MIN_HIT_RATE = 0.01


class LogitsCache:
    """Logits [V] by the tokens of a whole prompt, at most `max_bytes` of them.

    The one that was used least recently goes first. If fewer than `MIN_HIT_RATE` of `WINDOW`
    prompts were found, copying every prompt's logits does not pay: the cache empties itself and
    stops.
    """

    def __init__(self, max_bytes: int) -> None:
        self._rows: OrderedDict[int, tuple[bytes, bytes, Float32]] = OrderedDict()
        self._tally = Tally(int)
        self.resize(max_bytes)

    def get(self, token_ids: Tokens[int], salt: bytes) -> Float32 | None:
        """The logits of the prompt's last token, read-only; None when they are not there."""
        if self.paused:
            return None
        tokens = array("i", token_ids).tobytes()
        key = _key(tokens, salt)
        known_tokens, known_salt, logits = self._rows.get(key) or (None, None, None)
        hit = (known_tokens, known_salt) == (tokens, salt)
        if hit:
            self._rows.move_to_end(key)
        self._count(hit)  # which may empty the cache
        return logits if hit else None

    def put(self, token_ids: Tokens[int], salt: bytes, logits: Float32) -> None:
        """Keeps a copy of the logits, if it pays and they fit."""
        if self.paused:
            return
        tokens = array("i", token_ids).tobytes()
        self._remove(_key(tokens, salt))
        row = logits.copy()
        row.flags.writeable = False
        entry = (tokens, salt, row)
        if _size(entry) > self.max_bytes:
            return
        self._rows[_key(tokens, salt)] = entry
        self._tally["nbytes"] += _size(entry)
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

    def _remove(self, key: int) -> None:
        entry = self._rows.pop(key, None)
        self._tally["nbytes"] -= _size(entry) if entry else 0


def _key(tokens: bytes, salt: bytes) -> int:
    return xxhash.xxh3_64_intdigest(tokens, xxhash.xxh3_64_intdigest(salt))


def _size(entry: tuple[bytes, bytes, Float32]) -> int:
    return len(entry[0]) + len(entry[1]) + entry[2].nbytes
