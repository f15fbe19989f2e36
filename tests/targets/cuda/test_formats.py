"""Weights and caches in integers on the simulated device: against the CPU target of the same
artifact, and against what the float32 reference says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingot import LLM
from ingot.artifact.reader import Artifact
from ingot.runtime.arrays import Float32
from ingot.runtime.goldens import read_golden
from ingot.runtime.verify import Verification, verify
from tests.support.core import core
from tests.support.planted import Planted
from tests.support.tiny_models import save_random
from tests.targets.cuda.simulation import compile_sketch, simulated

pytestmark = pytest.mark.thorough

INT4 = {"quantize": "int4", "group_size": 64}  # rows of 96 columns have a short group
LONGEST = 20  # tokens, on two pages
# Relative error of logits against the CPU's, which rounds activations to int8 where weights are
# integers, and keeps them in float32 between some ops where the GPU keeps bfloat16.
AGAINST_CPU = {"none": 1e-2, "int8": 3e-2, "int6": 3e-2, "int5": 3e-2, "int4": 3e-2}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("llama", {**INT4, "kv_dtype": "int8", "dtype": "bfloat16"}),
    ("llama", {"quantize": "int8", "dtype": "bfloat16"}),
    ("qwen3", {"quantize": "int8", "kv_dtype": "int8", "dtype": "float32"}),
    ("qwen2", {**INT4, "dtype": "float32"}),
    ("mistral", {"kv_dtype": "int8", "dtype": "bfloat16"}),
    ("gemma2", {"quantize": "int8", "kv_dtype": "int8", "dtype": "bfloat16"}),
    ("gpt2", {**INT4, "kv_dtype": "int8", "dtype": "bfloat16"}),
]
HIGH: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"quantize": "int5", "dtype": "bfloat16"}),
    ("qwen3moe_unnormalised", {"quantize": "int6", "dtype": "bfloat16"}),
]
LATENT: list[tuple[str, dict[str, Any]]] = [
    ("deepseek_v2", {**INT4, "kv_dtype": "int8", "dtype": "bfloat16"}),
    ("deepseek_v3", {"quantize": "int8", "dtype": "float32"}),
    ("glm4flash", {"kv_dtype": "int8", "dtype": "bfloat16"}),
]


# What no CPU computes in.
HALVES: list[tuple[str, dict[str, Any]]] = [
    ("llama", {**INT4, "kv_dtype": "int8", "dtype": "float16"}),
    ("qwen3", {"dtype": "float16"}),
    ("gemma2", {"quantize": "int8", "kv_dtype": "int8", "dtype": "float16"}),
    ("gpt2", {**INT4, "dtype": "float16"}),
]


def compiled(folder: Path, family: str, options: dict[str, Any]) -> Path:
    model_dir = save_random(family, folder / "model", tokenizer=True)
    targets = ("cuda:sm_90",) if options["dtype"] == "float16" else ("cuda:sm_90", "cpu:native")
    return compile_sketch(
        model_dir, folder / "a.ingot", targets, max_model_len=LONGEST,
        max_num_seqs=4, max_num_batched_tokens=48, **options,
    )  # fmt: skip


def on_the_cpu(path: Path, tokens: list[int]) -> Float32:
    with LLM(Artifact.open(path, device="cpu")) as llm:
        return llm.logits(tokens)


@pytest.mark.cases(thorough=1)
@pytest.mark.parametrize(
    "family, options", core(further=[*CASES[:2], *LATENT[:1], *HIGH], slow=[*CASES, *LATENT])
)
def test_logits_are_those_of_the_cpu(tmp_path: Path, family: str, options: dict[str, Any]) -> None:
    path = compiled(tmp_path, family, options)
    tokens = np.random.default_rng(5).integers(256, size=LONGEST).tolist()
    expected = on_the_cpu(path, tokens)
    with simulated(path) as llm:
        got, chunks = llm.logits(tokens), llm.logits(tokens, chunk_tokens=7)
    error = np.linalg.norm(got - expected) / np.linalg.norm(expected)
    assert error < AGAINST_CPU[options.get("quantize", "none")]
    assert np.array_equal(got, chunks)


@pytest.mark.slow
@pytest.mark.parametrize(
    "family, options", core(further=CASES[:1], slow=[*CASES, *LATENT, *HALVES])
)
def test_the_golden_outputs_are_reproduced(
    tmp_path: Path, family: str, options: dict[str, Any]
) -> None:
    """In one piece, in chunks, and token by token, with equal bits."""
    with simulated(compiled(tmp_path, family, options)) as llm:
        replayed: Verification = verify(llm)
    replayed.raise_if_failed()
    assert replayed.num_positions > LONGEST


@pytest.mark.slow
@pytest.mark.parametrize("family, options", HALVES[1:2])
def test_an_error_of_three_times_the_noise_of_float16_fails(
    tmp_path: Path, family: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingot.runtime.verify.WAYS", {"prefill": None})
    with simulated(compiled(tmp_path, family, options)) as llm:
        golden = read_golden(llm.artifact)
        noise = golden.tolerances["float16"].noise
        replayed = verify(Planted(llm, golden, 3 * noise), golden)
    assert not replayed.passed
    assert replayed.mean_error > 1.25 * replayed.allowed.mean
