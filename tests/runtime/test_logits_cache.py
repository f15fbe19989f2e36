from __future__ import annotations

import numpy as np

from ingot.runtime import logits_cache
from ingot.runtime.logits_cache import WINDOW, LogitsCache

ROW = np.arange(100, dtype=np.float32)
ENTRY_BYTES = 400 + 3 * 4


def test_a_prompt_is_found_by_its_tokens_and_salt():
    cache = LogitsCache(10**4)
    row = ROW.copy()
    cache.put([1, 2, 3], b"", row)
    row[:] = 0  # the sampler overwrites what it is given
    assert np.array_equal(cache.get([1, 2, 3], b""), ROW)
    assert cache.get([1, 2], b"") is None and cache.get([1, 2, 3], b"salt") is None


def test_equal_hashes_do_not_make_equal_prompts(monkeypatch):
    monkeypatch.setattr(logits_cache, "_key", lambda tokens, salt: 5)
    cache = LogitsCache(10**4)
    cache.put([1, 2, 3], b"", ROW)
    assert cache.get([3, 2, 1], b"") is None and cache.get([1, 2, 3], b"x") is None
    assert cache.get([1, 2, 3], b"") is not None


def test_bytes_are_bounded_and_the_least_recently_used_goes_first():
    cache = LogitsCache(2 * ENTRY_BYTES)
    cache.put([1, 1, 1], b"", ROW)
    cache.put([2, 2, 2], b"", ROW)
    cache.get([1, 1, 1], b"")
    cache.put([3, 3, 3], b"", ROW)
    assert cache.get([2, 2, 2], b"") is None
    assert cache.get([1, 1, 1], b"") is not None and cache.get([3, 3, 3], b"") is not None
    counters = cache.counters()
    assert (counters.num_entries, counters.num_evictions) == (2, 1)
    assert counters.nbytes == 2 * ENTRY_BYTES
    cache.resize(ENTRY_BYTES)
    assert cache.counters().nbytes == ENTRY_BYTES
    cache.put([1, 1, 1], b"", np.zeros(1000, np.float32))
    assert cache.counters().nbytes <= ENTRY_BYTES


def test_it_stops_when_it_does_not_pay_and_a_new_size_starts_it_again():
    cache = LogitsCache(10**6)
    for number in range(WINDOW):
        cache.get([number], b"")
        cache.put([number], b"", ROW)
    assert cache.paused and cache.counters().nbytes <= ENTRY_BYTES
    cache.put([1], b"", ROW)
    assert cache.get([1], b"") is None
    cache.resize(10**6 + 1)
    cache.put([1], b"", ROW)
    assert cache.get([1], b"") is not None


def test_it_goes_on_when_it_pays():
    cache = LogitsCache(10**6)
    cache.put([0], b"", ROW)
    for number in range(1, 4 * WINDOW):
        cache.get([0] if number % 50 == 0 else [number], b"")
    assert not cache.paused


def test_without_memory_it_keeps_nothing():
    cache = LogitsCache(0)
    cache.put([1], b"", ROW)
    assert cache.get([1], b"") is None and cache.counters().num_queries == 0
