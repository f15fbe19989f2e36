"""Logits and tokens do not depend on what else runs: bit for bit, on the compiled model."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from ingot.runtime.config import EngineConfig
from ingot.runtime.devices.sampler import Sampler
from ingot.runtime.llm import LLM
from ingot.runtime.params import SamplingParams
from tests.runtime.fake_model import KERNELS, kernels, write_fake
from tests.support.core import core

pytestmark = pytest.mark.deterministic

NUM_PROMPTS, NUM_TOKENS = 32, 64
GREEDY = SamplingParams(temperature=0, max_tokens=10**6, ignore_eos=True, detokenize=False)
SCORED = SamplingParams(
    temperature=0, max_tokens=10**6, ignore_eos=True, detokenize=False, prompt_logprobs=0
)


class Recorder:
    """Stands before an executor's sampler and keeps the logits after every sequence of tokens."""

    def __init__(self, llm: LLM) -> None:
        self.rows: dict[tuple[int, ...], bytes] = {}
        self.differing = 0
        executor = llm._engine._executor
        self._sampler, executor._sampler = executor._sampler, self

    def sample(self, logits, sequences):
        for row, sequence in zip(logits, sequences, strict=True):
            self._keep(tuple(sequence.token_ids), row)
        return self._sampler.sample(logits, sequences)

    result = Sampler.result  # by the methods of this one

    def _keep(self, tokens, row):
        self.differing += self.rows.setdefault(tokens, row.tobytes()) != row.tobytes()


def prompts_of(seed: int, vocab: int, num_tokens: int = NUM_TOKENS) -> list[list[int]]:
    """Prompts of several lengths, many of which begin alike."""
    rng = random.Random(seed)
    stems = [[rng.randrange(vocab) for _ in range(num_tokens)] for _ in range(4)]
    prompts = []
    for _ in range(NUM_PROMPTS):
        length = rng.randrange(1, num_tokens)
        stem = rng.choice(stems)[: rng.randrange(length + 1)]
        prompts.append(stem + [rng.randrange(vocab) for _ in range(length - len(stem))])
    return prompts


def run(llm: LLM, prompts: list[list[int]], seed: int, params=GREEDY) -> list[list[int]]:
    """All prompts in random order, arriving while others run; their tokens."""
    rng, engine = random.Random(seed), llm._engine
    order = rng.sample(range(len(prompts)), len(prompts))
    added = {}
    while order or engine.has_unfinished:
        for _ in range(rng.choice([0, 1, 1, 3, 20])):
            if order:
                index = order.pop()
                added[index] = engine.add(prompts[index], params)
        engine.step()
        engine.pages.check()
    return [added[index].token_ids for index in range(len(prompts))]


def compare(path: Path, prompts, num_tokens=NUM_TOKENS, **options) -> int:
    """How many rows of logits, of prompts run together, are not those of each prompt alone."""
    with LLM(path, max_model_len=num_tokens, **options) as llm:
        recorder = Recorder(llm)
        runs = [run(llm, prompts, seed) for seed in range(2)]
        assert all(len(tokens) == num_tokens for tokens in runs[0])
        rows = recorder.rows
    with LLM(path, max_model_len=num_tokens, num_threads=1) as llm:
        differing = recorder.differing
        for tokens in {tuple(tokens) for tokens in [*runs[0], *runs[1]]}:
            for end, row in enumerate(llm.logits(tokens), 1):
                got = rows.get(tuple(tokens[:end]))
                differing += got is not None and got != row.tobytes()
    assert len(rows) > 0.3 * len(prompts) * num_tokens
    return differing


PAGES_OF_ONE = NUM_TOKENS // 16
WAYS = {
    "chunks of 1": {"config": EngineConfig(chunk_tokens=1, prefix_cache=False)},
    "chunks of 7": {"config": EngineConfig(chunk_tokens=7, prefix_cache=False)},
    "chunks of 64": {"config": EngineConfig(chunk_tokens=64, prefix_cache=False)},
    "whole prompts": {"config": EngineConfig(prefix_cache=False)},
    "small steps": {"config": EngineConfig(max_num_batched_tokens=37, max_num_seqs=5)},
    "cache, cold and warm": {"config": EngineConfig()},
    "cache, 1 thread": {"num_threads": 1, "config": EngineConfig(chunk_tokens=7)},
    "cache, 2 threads": {"num_threads": 2, "config": EngineConfig(chunk_tokens=7)},
    "overlap": {"config": EngineConfig(overlap=True)},
    "no overlap": {"config": EngineConfig(overlap=False)},
    "logits cache": {"config": EngineConfig(logits_cache_bytes=1 << 20, overlap=True)},
}


@pytest.fixture(scope="module")
def page_bytes(shakespeare_artifact) -> int:
    with LLM(shakespeare_artifact) as llm:
        return llm.artifact.manifest.model.kv_bytes_per_token * llm.artifact.plan.limits.page_size


@pytest.fixture(scope="module")
def prompts(shakespeare_artifact) -> list[list[int]]:
    return prompts_of(0, 2048)


@pytest.mark.cases(core=1, thorough=1)
@pytest.mark.parametrize("way", core(*[*WAYS][::4], further=WAYS))
def test_logits_are_those_of_each_prompt_alone(shakespeare_artifact, prompts, way):
    assert compare(shakespeare_artifact, prompts, **WAYS[way]) == 0


@pytest.mark.cases(thorough=1)
@pytest.mark.parametrize(
    ("num_pages", "overlap"),
    core(further=[(13, True), (PAGES_OF_ONE, True), (13, False), (40, False)]),
)
def test_logits_are_the_same_with_few_pages(
    shakespeare_artifact, prompts, page_bytes, num_pages, overlap
):
    """Sequences are preempted, and cached prefixes are evicted in part."""
    config = EngineConfig(overlap=overlap)
    nbytes = num_pages * page_bytes
    assert compare(shakespeare_artifact, prompts, kv_cache_bytes=nbytes, config=config) == 0
    with LLM(shakespeare_artifact, max_model_len=64, kv_cache_bytes=nbytes, config=config) as llm:
        run(llm, prompts, 0)
        counters = llm.counters()
        assert counters.num_pages == num_pages
        assert counters.num_preemptions > 0 or num_pages != 13
        assert counters.prefix_cache.num_evictions > 0


def test_a_kernel_that_depends_on_the_batch_is_caught(tmp_path):
    """The negative control, with the fake kernels: as they are, and as they must not be."""
    prompts = prompts_of(1, 300, 40)
    for flags, wrong in (((), False), (("-DDEPENDS_ON_BATCH",), True)):
        path = tmp_path / f"{wrong}.ingot"
        write_fake(path, files={KERNELS: kernels(*flags)})
        assert (compare(path, prompts, 40) > 0) is wrong


def test_logits_of_prompt_positions_are_the_same(shakespeare_artifact, prompts):
    with LLM(shakespeare_artifact, max_model_len=NUM_TOKENS) as llm:
        kept = []
        sampler = llm._engine._executor._sampler
        score = sampler.score

        def spy(logits, next_tokens, count):
            kept.append((list(next_tokens), np.array(logits)))
            return score(logits, next_tokens, count)

        sampler.score = spy
        run(llm, prompts, 3, SCORED)
        known = {}
        for prompt in prompts:
            for token, row in zip(prompt[1:], llm.logits(prompt), strict=False):
                known.setdefault(token, set()).add(row.tobytes())
    assert sum(len(tokens) for tokens, _ in kept) == sum(len(p) - 1 for p in prompts)
    for tokens, rows in kept:
        for token, row in zip(tokens, rows, strict=True):
            assert row.tobytes() in known[token]


@pytest.mark.slow
def test_200_requests_in_32_pages_end_as_they_would_with_room(shakespeare_artifact, page_bytes):
    rng = random.Random(7)
    prompts = [[rng.randrange(2048) for _ in range(rng.randrange(1, 60))] for _ in range(200)]
    params = [
        SamplingParams(max_tokens=rng.randrange(1, 60), temperature=rng.choice([0, 1.0]), seed=i)
        for i in range(200)
    ]
    outputs = []
    for num_pages in (32, 2000):
        options = {"max_model_len": 128, "kv_cache_bytes": num_pages * page_bytes}
        with LLM(shakespeare_artifact, **options) as llm:
            done = llm.generate(prompts, params)
            outputs.append([(o.outputs[0].token_ids, o.outputs[0].text) for o in done])
            counters = llm.counters()
            assert counters.num_free_pages == counters.num_pages
            assert (counters.num_preemptions > 0) == (num_pages == 32)
    assert outputs[0] == outputs[1]
