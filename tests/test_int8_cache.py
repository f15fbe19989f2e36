"""Artifacts whose keys and values are int8, from the option to the tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ingot
from golden.update import MODEL
from ingot.api import LLM
from ingot.artifact.formats import rounded_rows
from ingot.errors import UsageError
from tests.support.core import core

VARIANTS = {
    "float32": {"dtype": "float32"},
    "int4": {"quantize": "int4", "group_size": 128},
}
HEADS, LAYERS, SIZE = 2, 6, 64  # KV heads of the bundled model


@pytest.fixture(scope="module", params=core(further=VARIANTS))
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.mktemp("cache") / "model.ingot"
    options = VARIANTS[request.param]
    return ingot.compile(MODEL, path, max_model_len=128, kv_dtype="int8", **options)


@pytest.mark.cases(thorough=1)
def test_the_plan_says_what_a_token_takes(compiled) -> None:
    """The goldens were replayed, in one prefill, in chunks and token by token, at the compile."""
    assert compiled.golden_error is not None and compiled.golden_error < 0.25
    with LLM(compiled.artifact) as llm:
        plan = llm.artifact.plan
    assert plan.kv_dtype == "int8"
    assert plan.kv_bytes_per_token == 2 * LAYERS * HEADS * (SIZE + 4)
    assert compiled.manifest.model.kv_bytes_per_token == plan.kv_bytes_per_token
    assert [state.format for state in plan.spec.states] == 2 * LAYERS * [rounded_rows(SIZE)]


@pytest.mark.cases(thorough=1)
def test_sequences_are_the_same_alone_in_company_and_behind_a_prefix(compiled) -> None:
    stem = [(i * 37) % 2048 for i in range(40)]
    prompts = [[5], stem, [*stem[:32], 9, 8, 7], [(i * 91) % 2048 for i in range(17)]]
    params = ingot.SamplingParams(temperature=0, max_tokens=12, logprobs=1, ignore_eos=True)
    alone = []
    for prompt in prompts:
        with LLM(compiled.artifact) as llm:
            alone += llm.generate([prompt], params)
    with LLM(compiled.artifact) as llm:
        together = llm.generate(prompts, params)
        behind = llm.generate(prompts[2], params)
        logits = [llm.logits(stem, chunk_tokens=n) for n in (None, 9)]
    assert [o.outputs[0] for o in together] == [o.outputs[0] for o in alone]
    assert behind[0].outputs[0] == alone[2].outputs[0]
    assert behind[0].num_cached_tokens == 32
    assert np.array_equal(*logits)


@pytest.mark.cases(thorough=1)
def test_it_is_not_the_model_with_other_caches(tmp_path: Path, compiled) -> None:
    """The control: int8 is what attention reads, and it costs little."""
    options = {"dtype": compiled.manifest.numerics.dtype}
    if compiled.manifest.numerics.quantization != "none":
        options |= VARIANTS["int4"]
    report = ingot.compile(MODEL, tmp_path / "wide.ingot", max_model_len=128, **options)
    tokens = [(i * 37) % 2048 for i in range(40)]
    with LLM(report.artifact) as wide, LLM(compiled.artifact) as narrow:
        one, other = wide.logits(tokens), narrow.logits(tokens)
    assert not np.array_equal(one, other)
    assert np.linalg.norm(one - other) < 2e-2 * np.linalg.norm(one)


def test_another_dtype_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"unknown KV dtype 'int4'\n.*auto, int8"):
        ingot.compile(MODEL, tmp_path / "x.ingot", kv_dtype="int4")
    assert not list(tmp_path.iterdir())
