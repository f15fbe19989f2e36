"""Compiled models against `transformers`, for every family and every option."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ingot.passes.pipeline import optional_passes
from ingot.runtime.llm import LLM
from ingot.runtime.params import SamplingParams
from ingot.targets.cpu.kind import KIND
from tests.end_to_end import integers
from tests.end_to_end.support import (
    LIMITS,
    Compile,
    Compiled,
    check_logits,
    judge,
    judged_greedy,
    levels,
    limit_of,
    open_as,
    random_tokens,
)
from tests.support import dense_models as dense
from tests.support.core import core
from tests.support.tiny_models import CASES, FAMILIES, MOE, STATES, TRAINED
from tests.targets.cpu.native import runnable

# One token, two, around the page of 16, the first beyond the window of 24, and some beyond two
# pages, and beyond every trained length.
LENGTHS = (1, 2, 15, 16, 17, 25, 40, 300)
# Frequencies that are fixed by the longest sequence: transformers changes them with the length.
FIXED_BY_LENGTH = ("dynamic", "longrope")
BFLOAT16 = [
    "llama",
    "llama_mqa",
    "llama_head_dim_12",
    "llama_head_dim_80",
    "llama_attention_bias",
    "llama_mlp_bias",
    "llama_yarn",
    "llama_gelu_tanh",
    "llama_relu",
    "qwen2_layer_types",
    "qwen3_tied",
    "qwen3_mqa",
    "mistral",
    "llama_tied_vocab_333",
    "gemma2",
    "gpt2",
]
# Cases that differ from another in values alone, or in what tests of modules prove already.
WITH_SLOW = (
    *("gemma2_attention_bias", "gemma2_gelu", "gemma2_layer_types", "gemma2_linear"),
    *("gemma2_low_caps", "gemma2_silu", "gemma2_untied", "gpt2_eps", "gpt2_gelu"),
    *("llama_width_36", "llama_width_100", "qwen3_width_576"),
    *("gpt2_gelu_fast", "gpt2_relu", "gpt2_silu", "gpt2_unscaled", "gpt2_untied", "gpt2_upcast"),
)
NEW_TOKENS = 12
LATENT_EXPERTS = ("deepseek_v2_experts", "deepseek_v2_groups", "deepseek_v3_experts", "glm4flash")
# One of each: a norm for every head, neighbours of a part of a head, norms over the whole width
# and after the rotation, a temperature, two rotations.
DENSE = (
    *(("cohere_qk_norm", "float32"), ("glm4", "bfloat16"), ("olmo2", "bfloat16")),
    *(("hunyuan", "bfloat16"), ("mistral3", "float32"), ("gemma3_ropes", "bfloat16")),
)
# With the core of the tests: each kind of norm, of MLP and of positions, and both dtypes.
FIRST = (
    ("llama", "float32"),
    ("gpt2", "float32"),
    ("gemma2", "float32"),
    ("qwen3", "bfloat16"),
)
FURTHER = ("qwen3_window", "llama_longrope", "gemma2_no_caps", "llama_tied")


def lengths_by_limit(name: str) -> dict[int, tuple[int, ...]]:
    """Which lengths to test with which max_model_len."""
    if any(rope in name for rope in FIXED_BY_LENGTH):
        return {
            TRAINED: tuple(length for length in LENGTHS if length <= TRAINED),
            300: (300,),
        }
    return {300 + NEW_TOKENS: LENGTHS}


def check_greedy(llm: LLM, model_dir: Path, length: int, limit: float) -> None:
    """The same tokens, unless the reference itself hardly prefers one."""
    prompt = random_tokens(length)
    expected, rows = judged_greedy(judge(model_dir), prompt, NEW_TOKENS)
    params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, detokenize=False)
    got = llm.generate([prompt], params)[0].outputs[0].token_ids
    assert len(got) == NEW_TOKENS
    for ours, theirs, logits in zip(got, expected, rows, strict=True):
        if ours != theirs:
            margin = logits[theirs] - logits[ours]
            assert margin <= limit * np.linalg.norm(logits)
            return  # the texts part here
    assert got == expected


def runs(name: str, dtype: str) -> list[Compile]:
    return [Compile(name, dtype, longest) for longest in lengths_by_limit(name)]


def when(name: str, dtype: str) -> list[pytest.MarkDecorator]:
    """Whether a case belongs to the core, to all tests or to the slow ones."""
    if (name, dtype) in FIRST:
        return []
    plain = "_" not in name or name in FURTHER
    return [pytest.mark.thorough if plain and name not in WITH_SLOW else pytest.mark.slow]


RUNS = [
    pytest.param(runs(name, dtype), marks=when(name, dtype))
    for dtype, names in (("float32", sorted(CASES)), ("bfloat16", BFLOAT16))
    for name in names
]
RUNS += core(
    further=(), slow=[runs(name, "bfloat16") for name in sorted(CASES) if name not in BFLOAT16]
)
RUNS += core(
    further=[runs(*case) for case in DENSE[:1]],
    slow=[runs(name, dtype) for name in dense.CASES for dtype in ("bfloat16", "float32")],
)
RUNS += core(
    further=[runs("mixtral", "float32"), runs("gptoss", "bfloat16")],
    slow=[runs(name, dtype) for name in (*MOE, *LATENT_EXPERTS) for dtype in LIMITS],
)
RUNS += core(
    further=(), slow=[runs(name, dtype) for name in STATES if name != "qwen35" for dtype in LIMITS]
)
# Four builds each: every model and both dtypes; the other pairs are with the slow tests.
LEVELS = [
    pytest.param([Compile(name, dtype, 300, levels())], marks=marks)
    for name, dtype, marks in (
        ("llama_head_dim_20", "float32", pytest.mark.thorough),
        ("llama_head_dim_20", "bfloat16", pytest.mark.slow),
        ("qwen3_layer_types", "float32", pytest.mark.slow),
        ("qwen3_layer_types", "bfloat16", pytest.mark.slow),
        ("qwen2", "float32", pytest.mark.slow),
        ("qwen2", "bfloat16", pytest.mark.slow),
    )
]
# Every pass that may be left out, and the one without which heads are normed by themselves.
OPTIONAL = (*optional_passes(), *KIND.rules)
IN_INTEGERS = [
    [Compile(name, "bfloat16", 300, quantize=kind, kv_dtype=kv_dtype)]
    for kind, kv_dtype in (("int8", "auto"), ("int4", "int8"))
    for name in FAMILIES
]
EXPERTS_IN_INTEGERS = [
    [Compile(name, "bfloat16", 300, quantize=kind)]
    for kind in ("int8", "int4")
    for name in ("gptoss_layer_types", "qwen3moe_unnormalised")
]
QUANTIZED = core(
    further=[case for case in IN_INTEGERS if case[0].name in ("gemma2", "gpt2")]
    + EXPERTS_IN_INTEGERS[-1:],
    slow=IN_INTEGERS + EXPERTS_IN_INTEGERS,
)
UNFUSED = [
    [Compile("qwen3", "float32", 300, disable_passes=disabled)]
    for disabled in (("group_heads",), OPTIONAL)
]


def spelled(cases: list[Compile]) -> str:
    return f"{cases[0].name}-{cases[0].dtype}"


def stored(cases: list[Compile]) -> str:
    return f"{cases[0].name}-{cases[0].quantize}"


@pytest.mark.cases(core=1, thorough=2)
@pytest.mark.parametrize("cases", RUNS, ids=spelled)
def test_compiled_logits_equal_those_of_transformers(
    cases: list[Compile], compiled: Compiled
) -> None:
    for case in cases:
        model_dir, artifact = compiled(case)
        lengths = lengths_by_limit(case.name)[case.max_model_len]
        limit = limit_of(case.name, case.dtype)
        with LLM(artifact) as llm:
            check_logits(llm, model_dir, lengths, limit)
            if case.max_model_len > 300:
                check_greedy(llm, model_dir, 17, limit)


@pytest.mark.cases(thorough=1)
@pytest.mark.parametrize("cases", QUANTIZED, ids=stored)
def test_families_compute_the_same_in_integers(cases: list[Compile], compiled: Compiled) -> None:
    (case,) = cases
    model_dir, artifact = compiled(case)
    with LLM(artifact) as llm:
        states = {"limit": limit_of(case.name, "int8")} if case.name in STATES else {}
        integers.check_integers(llm, model_dir, (1, 17, 300), **states)
        if case.quantize == "int8":  # rounding hardly moves the weights
            check_logits(llm, model_dir, (1, 17, 300), limit_of(case.name, "int8"))


@pytest.mark.thorough
def test_the_numbers_of_int4_are_told_from_the_weights(compiled: Compiled) -> None:
    """Negative control: the limit is not met by the model whose weights were rounded."""
    (case,) = next(cases for cases in IN_INTEGERS if stored(cases) == "gemma2-int4")
    model_dir, artifact = compiled(case)
    with LLM(artifact) as llm, pytest.raises(AssertionError):
        check_logits(llm, model_dir, (17,), integers.LIMIT)


@pytest.mark.parametrize("cases", LEVELS, ids=spelled)
def test_every_level_computes_the_same_model(cases: list[Compile], compiled: Compiled) -> None:
    (case,) = cases
    model_dir, artifact = compiled(case)
    for level in runnable(*case.targets):
        with open_as(artifact, level) as llm:
            assert llm.artifact.target.name == level
            check_logits(llm, model_dir, (1, 17, 300), LIMITS[case.dtype])


@pytest.mark.cases(thorough=1)
@pytest.mark.parametrize("cases", core(further=UNFUSED), ids=["heads", "all"])
def test_passes_that_are_left_out_change_nothing(cases: list[Compile], compiled: Compiled) -> None:
    (case,) = cases
    model_dir, artifact = compiled(case)
    with LLM(artifact) as llm:
        assert {"rms_norm", "rope"} <= {group.kernel for group in llm.artifact.plan.kernels}
        check_logits(llm, model_dir, (1, 17, 300), LIMITS["float32"])


@pytest.mark.thorough
def test_another_model_is_told_apart(compiled: Compiled) -> None:
    """Negative control: the limits are not met by a model that differs in one option."""
    _, artifact = compiled(*runs("mistral_full", "float32"))
    other, _ = compiled(*runs("mistral", "float32"))
    with LLM(artifact) as llm, pytest.raises(AssertionError):
        check_logits(llm, other, (300,), LIMITS["bfloat16"])
