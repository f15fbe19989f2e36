"""Families that keep records on the simulated device: against `transformers` or the CPU target, and
against themselves in steps of other kinds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ingot import LLM
from ingot.artifact.reader import Artifact
from ingot.runtime.arrays import Float32
from ingot.runtime.config import EngineConfig
from tests.support import rwkv_models
from tests.support.core import core
from tests.support.tiny_models import save_random
from tests.targets.cuda.simulation import TARGET, compile_sketch, simulated
from tests.targets.cuda.test_company import GREEDY, prompt, results
from tests.targets.cuda.test_families import error, theirs

pytestmark = [pytest.mark.thorough, pytest.mark.deterministic]

OPTIONS = {
    "dtype": "float32", "max_model_len": 48, "max_num_seqs": 8, "max_num_batched_tokens": 48
}  # fmt: skip
RWKV = "rwkv7"
LENGTH = 37  # two cells and some tokens of a third
TOLERANCE = 1e-5


def saved(folder: Path, family: str) -> Path:
    if family != RWKV:
        return save_random(family, folder / "model", tokenizer=True)
    path = rwkv_models.save_fla(folder / "model", rwkv_models.tensors(layers=2))
    (path / "rwkv_vocab_v20230424.txt").write_bytes(rwkv_models.vocabulary([b"the "]))
    return path


def of_the_cpu(path: Path, tokens: list[int]) -> Float32:
    with LLM(Artifact.open(path, device="cpu")) as llm:
        return llm.logits(tokens)


@pytest.mark.cases(thorough=3)
@pytest.mark.parametrize(
    "family",
    core(
        further=["qwen35", "mamba2_odd", RWKV], slow=["qwen3next", "nemotronh_latent", "mamba_odd"]
    ),
)
def test_logits_are_those_of_transformers_and_the_same_bits_in_chunks(
    tmp_path: Path, family: str
) -> None:
    """transformers has no RWKV-7; the CPU target, which takes up tokens one by one, judges it."""
    model_dir = saved(tmp_path, family)
    targets = (TARGET, "cpu:native") if family == RWKV else (TARGET,)
    path = compile_sketch(model_dir, tmp_path / "a.ingot", targets, **OPTIONS)
    tokens = list(prompt(LENGTH, 1))
    with simulated(path) as llm:
        whole = llm.logits(tokens)
        chunks = llm.logits(tokens, chunk_tokens=7)
        entry = next(each for each in llm.artifact.manifest.targets if each.name == TARGET)
        assert entry.grid == llm.artifact.plan.grid == (0 if family == "mamba_odd" else 16)
    assert np.array_equal(whole, chunks)
    right = of_the_cpu(path, tokens) if family == RWKV else theirs(model_dir, tokens)
    assert error(whole, right) < TOLERANCE


@pytest.mark.cases(thorough=1)
@pytest.mark.parametrize("family", core(further=["qwen35"], slow=["mamba2_odd", RWKV]))
def test_company_and_cached_prefixes_change_no_bit(tmp_path: Path, family: str) -> None:
    """Records are copied on the device where prompts share a beginning."""
    model_dir = saved(tmp_path, family)
    path = compile_sketch(model_dir, tmp_path / "a.ingot", (TARGET, "cpu:native"), **OPTIONS)
    shared = prompt(33, 1)
    prompts = [shared, (*shared[:20], 7, 8, 9), shared[:5], shared[:1]]
    with simulated(path, config=EngineConfig(prefix_cache=False)) as llm:
        alone = [results(llm, [each], GREEDY)[0] for each in prompts]
        assert results(llm, prompts, GREEDY) == alone
    with simulated(path, config=EngineConfig(chunk_tokens=5)) as llm:
        assert results(llm, prompts, GREEDY) == alone
        assert results(llm, prompts, GREEDY) == alone, "with known beginnings"
        again = llm.generate([list(shared)], GREEDY)[0]
        assert again.num_cached_tokens > 0
    with LLM(Artifact.open(path, device="cpu")) as llm:
        assert [tokens for tokens, _ in results(llm, prompts, GREEDY)] == [t for t, _ in alone]
