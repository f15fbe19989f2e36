"""A small model of every dense family on the simulated device: against `transformers`, against the
CPU target of the same artifact, and against itself in steps of other kinds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from ingot import LLM, SamplingParams
from ingot.artifact.reader import Artifact
from ingot.runtime.arrays import Float32
from tests.support.core import core
from tests.support.dense_models import USUAL
from tests.support.tiny_models import save_random
from tests.targets.cuda.simulation import TARGET, compile_sketch, simulated

LAYERS, WINDOW = 2, 6
# As many rows of logits as tokens, so that a prompt is one step.
OPTIONS = {"max_model_len": 32, "max_num_seqs": 32, "max_num_batched_tokens": 32}
NEW = 3
GREEDY = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True, detokenize=False)
# Of logits, relative to `transformers`, and to the CPU, which keeps float32 between some ops where
# the GPU keeps bfloat16.
TOLERANCE = {"float32": 1e-5, "bfloat16": 3e-2}
AGAINST_CPU = {"float32": 5e-6, "bfloat16": 1e-2}
FAMILIES = (*USUAL, "llama", "qwen2", "qwen3", "mistral", "gemma2", "gpt2")
# Between them they launch all that families differ in.
UNLIKE = ("gemma3", "glm4", "olmo2", "cohere2", "gpt_neox", "phi3")


def prompts() -> list[list[int]]:
    """On two pages, on one, and of one token: decoded side by side, beside a row of padding."""
    tokens = np.random.default_rng(0).integers(256, size=22).tolist()
    return [tokens[:17], tokens[17:21], tokens[21:]]


def saved(folder: Path, family: str) -> Path:
    """The model, with a window that its prompts leave where it has one."""
    return save_random(family, folder / "model", tokenizer=True, layers=LAYERS, window=WINDOW)


def error(got: Float32, expected: Float32) -> float:
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))


def theirs(model_dir: Path, tokens: Sequence[int]) -> Float32:
    model = transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    with torch.no_grad():
        logits: Float32 = model(torch.tensor([tokens])).logits[0].numpy()
    return logits


def decoded(llm: LLM) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(prompts(), GREEDY)]


@pytest.mark.cases(thorough=1)
@pytest.mark.deterministic
@pytest.mark.parametrize(
    "family, dtype",
    core(
        further=[(family, "float32") for family in UNLIKE],
        slow=[(family, dtype) for dtype in TOLERANCE for family in FAMILIES],
    ),
)
def test_a_family(tmp_path: Path, family: str, dtype: str) -> None:
    """Tokens that graphs decode are the likeliest of a prompt that has them, whose logits are the
    same bits in one step and in chunks, the last of which is one token."""
    model_dir = saved(tmp_path, family)
    path = compile_sketch(model_dir, tmp_path / "a.ingot", dtype=dtype, **OPTIONS)
    with simulated(path) as llm:
        drawn = decoded(llm)
        whole = prompts()[0] + drawn[0]
        got, chunks = llm.logits(whole), llm.logits(whole, chunk_tokens=len(whole) - 1)
    assert got[-NEW - 1 : -1].argmax(-1).tolist() == drawn[0]
    assert np.array_equal(got, chunks)
    assert error(got, theirs(model_dir, whole)) < TOLERANCE[dtype]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", AGAINST_CPU)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_beside_the_cpu(tmp_path: Path, family: str, dtype: str) -> None:
    """Tokens are the same in float32, of which no two are nearly as likely here."""
    targets = (TARGET, "cpu:native")
    path = compile_sketch(
        saved(tmp_path, family), tmp_path / "a.ingot", targets, dtype=dtype, **OPTIONS
    )
    with LLM(Artifact.open(path, device="cpu")) as llm:
        expected, tokens = llm.logits(prompts()[0]), decoded(llm)
    with simulated(path) as llm:
        assert error(llm.logits(prompts()[0]), expected) < AGAINST_CPU[dtype]
        assert dtype != "float32" or decoded(llm) == tokens
