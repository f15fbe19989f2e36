"""Models all of whose layers look back at a window: pages behind it are given back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ingot.artifact.pages import most_pages
from ingot.artifact.reader import Artifact
from ingot.compiler.compile import compile_model
from ingot.compiler.options import CompileOptions
from ingot.models.model_dir import ModelDir
from ingot.runtime.config import EngineConfig
from ingot.runtime.llm import LLM
from ingot.runtime.params import SamplingParams
from tests.runtime.fake_model import LIMITS, PAGE_BYTES, greedy, logits, write_fake
from tests.runtime.gate import is_idle
from tests.support.tiny_models import save_random

LONG = replace(LIMITS, max_model_len=400, max_num_batched_tokens=8)
GREEDY = SamplingParams(temperature=0, max_tokens=300, ignore_eos=True, detokenize=False)
WINDOW = 6
FEW_PAGES = 8  # of 4 tokens: what one sequence can own at once


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    path = tmp_path_factory.mktemp("windows") / "a.ingot"
    return write_fake(path, limits=LONG, windows=(WINDOW, 3))


@pytest.mark.cases(core=2)
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("prefix_cache", [False, True])
def test_a_long_generation_runs_in_a_few_pages(artifact, overlap, prefix_cache):
    config = EngineConfig(overlap=overlap, prefix_cache=prefix_cache)
    prompts = [[7, 8, 9], list(range(60)), [5] * 90]
    expected = [greedy(prompt, 300, WINDOW) for prompt in prompts]
    with LLM(artifact, kv_cache_bytes=FEW_PAGES * 2 * PAGE_BYTES, config=config) as llm:
        assert llm.counters().num_pages == FEW_PAGES
        for _ in range(2):
            outputs = llm.generate(prompts, GREEDY)
            assert [o.outputs[0].token_ids for o in outputs] == expected
            assert is_idle(llm)
        tokens = list(range(200))
        assert llm.logits(tokens).tobytes() == logits(tokens, WINDOW).tobytes()


def test_neighbours_that_compete_for_pages_change_no_token(artifact):
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 300, rng.integers(1, 90)).tolist() for _ in range(12)]
    prompts += [prompt[: len(prompt) // 2] for prompt in prompts]
    params = replace(GREEDY, max_tokens=40)
    config = EngineConfig(overlap=True)
    with LLM(artifact, kv_cache_bytes=FEW_PAGES * 2 * PAGE_BYTES, config=config) as llm:
        for _ in range(2):
            outputs = llm.generate(prompts, params)
            assert [o.outputs[0].token_ids for o in outputs] == [
                greedy(prompt, 40, WINDOW) for prompt in prompts
            ]
        assert llm.counters().num_preemptions > 0 and is_idle(llm)


def test_a_prefix_is_found_whole_or_as_far_as_its_pages_are_left(artifact):
    prompt = list(range(100, 160))
    params = replace(GREEDY, max_tokens=2)
    with LLM(artifact) as llm:
        first = llm.generate([prompt], params)[0]
        again = llm.generate([[*prompt, 1]], params)[0]
        assert (first.num_cached_tokens, again.num_cached_tokens) == (0, 60)
        assert again.outputs[0].token_ids == greedy([*prompt, 1], 2, WINDOW)
        several = replace(params, n=3, temperature=1.0, seed=1)
        outputs = llm.generate([prompt], several)[0].outputs
        llm.config = EngineConfig(prefix_cache=False, max_num_seqs=1)
        assert llm.generate([prompt], several)[0].outputs == outputs


def test_a_layer_that_looks_at_everything_keeps_all_pages(tmp_path):
    path = write_fake(tmp_path / "a.ingot", limits=LONG, windows=(WINDOW, 0))
    with LLM(path, kv_cache_bytes=100 * 2 * PAGE_BYTES) as llm:
        out = llm.generate([[7, 8, 9]], GREEDY)[0]
        assert out.outputs[0].token_ids == greedy([7, 8, 9], 300)


@pytest.mark.thorough
def test_a_compiled_model_says_the_same_in_few_pages_and_in_many(tmp_path):
    save_random("mistral", tmp_path / "model", "bfloat16", tokenizer=True)
    options = CompileOptions(
        dtype="bfloat16", max_model_len=400, max_num_batched_tokens=32, max_num_seqs=4
    )
    compile_model(ModelDir.open(tmp_path / "model"), tmp_path / "a.ingot", options)
    found = []
    for num_pages in (most_pages(400, 32, 16, 24), 4 * most_pages(400, 32, 16, 24)):
        artifact = Artifact.open(tmp_path / "a.ingot")
        page_bytes = sum(artifact.plan.page_sizes())
        with LLM(artifact, kv_cache_bytes=num_pages * page_bytes) as llm:
            assert llm._engine.pages.window == 24 and llm.counters().num_pages == num_pages
            prompts = [[3, 1, 4], list(range(100)), list(range(60))]
            outputs = llm.generate(prompts, replace(GREEDY, logprobs=3))
            found.append([(o.outputs[0].token_ids, o.outputs[0].logprobs) for o in outputs])
            found[-1].append(llm.logits(list(range(64)) * 6).tobytes())
    assert found[0] == found[1]
