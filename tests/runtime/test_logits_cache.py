from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ingot.runtime.config import EngineConfig
from ingot.runtime.llm import LLM
from ingot.runtime.logits_cache import WINDOW, LogitsCache
from ingot.runtime.params import SamplingParams
from tests.runtime.fake_model import greedy

ROW = np.arange(100, dtype=np.float32)
ENTRY_BYTES = 400 + 3 * 4


def test_a_prompt_is_found_by_its_tokens_and_salt():
    cache = LogitsCache(10**4)
    row = ROW.copy()
    cache.put([1, 2, 3], b"", row)
    row[:] = 0  # the sampler overwrites what it is given
    assert np.array_equal(cache.get([1, 2, 3], b""), ROW)
    assert cache.get([1, 2], b"") is None and cache.get([1, 2, 3], b"salt") is None


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


def test_a_hit_that_ends_a_poor_window_is_still_a_hit():
    """The cache empties itself with this very query."""
    cache = LogitsCache(10**6)
    cache.put([0], b"", ROW)
    for number in range(1, WINDOW):
        assert cache.get([number], b"") is None
    assert np.array_equal(cache.get([0], b""), ROW)
    assert cache.paused and cache.counters().num_entries == 0


@pytest.mark.parametrize("overlap", [False, True])
def test_a_stop_string_in_the_first_token_ends_at_the_same_token(fake_artifact, overlap):
    outputs = []
    config = EngineConfig(logits_cache_bytes=10**6, overlap=overlap)
    with LLM(fake_artifact, config=config) as llm:
        plain = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=0)
        prompt = next(
            [n] for n in range(100) if llm.generate([[n]], plain)[0].outputs[0].logprobs[0]
            and len(llm.generate([[n]], plain)[0].outputs[0].text) > 6
            and llm.get_tokenizer().decode(greedy([n], 1)).isalnum()
        )  # fmt: skip
        first = llm.get_tokenizer().decode(greedy(prompt, 1))
        params = replace(plain, stop=[first])
        for _ in range(2):
            output = llm.generate([[*prompt]], params)[0]
            outputs.append(output.outputs[0])
            assert output.metrics.num_generated_tokens == 1
        assert llm.counters().logits_cache.num_hits > 1
    assert outputs[0] == outputs[1] and outputs[1].token_ids == greedy(prompt, 1)
