"""Compiled models of short convolutions, Mamba-2 and Mamba: the logits of `transformers`, greedy
tokens, matrices in integers, and the same bits in any company."""

from __future__ import annotations

import pytest

from ingot.runtime.llm import LLM
from tests.end_to_end import integers, test_company
from tests.end_to_end.support import Compile, Compiled, check_logits, limit_of
from tests.end_to_end.test_families import NEW_TOKENS, check_greedy

LONGEST = 300 + NEW_TOKENS
# Attention, Mamba-2, an MLP and plain experts on latent rows, each alone in a layer.
FIRST = Compile("nemotronh_latent", "float32", LONGEST)
OTHERS = ("lfm2moe", "lfm3", "granitehybrid_moe", "mamba2_odd", "mamba_odd", "falconmamba")


def named(case: Compile) -> str:
    return f"{case.name}-{case.dtype}-{case.quantize}"


# The core has their kernels (tests/targets/cpu/test_records.py) and modules (tests/models).
@pytest.mark.thorough
@pytest.mark.parametrize(
    "case",
    [
        FIRST,
        *(Compile(name, "float32", LONGEST) for name in OTHERS),
        *(Compile(name, "bfloat16", LONGEST) for name in ("lfm3", "granitehybrid_moe")),
    ],
    ids=named,
)
def test_compiled_logits_and_tokens_are_those_of_transformers(
    case: Compile, compiled: Compiled
) -> None:
    model_dir, artifact = compiled(case)
    limit = limit_of(case.name, case.dtype)
    with LLM(artifact) as llm:
        check_logits(llm, model_dir, (1, 2, 17, 40), limit)
        check_greedy(llm, model_dir, 17, limit)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_matrices_in_integers_leave_alone_what_steers_states(kind: str, compiled: Compiled) -> None:
    model_dir, artifact = compiled(Compile(FIRST.name, "bfloat16", LONGEST, quantize=kind))
    with LLM(artifact) as llm:
        integers.check_integers(llm, model_dir, (1, 17), limit_of(FIRST.name, "int8"))
        stored = {b.name: b.format.dtype for b in llm.artifact.plan.of_kind("weight")}
    mixer, moe = "model.layers.1.self_attn", "model.layers.0.mlp"
    assert stored[f"{mixer}.gate_conv_proj.weight"] == stored[f"{mixer}.out_proj.weight"] == kind
    assert stored[f"{moe}.experts.up_proj"] == stored[f"{moe}.latent_in_proj.weight"] == kind
    assert stored[f"{mixer}.dt_proj.weight"] == "bfloat16"
    others = ("dt_proj.bias", "conv.weight", "rate", "skip", "norm.weight")
    assert {stored[f"{mixer}.{name}"] for name in others} == {"float32"}


@pytest.mark.thorough
@pytest.mark.deterministic
@pytest.mark.parametrize("name", ["nemotronh_latent", "lfm3", "mamba_odd"])
def test_company_preemption_and_cached_prefixes_change_no_bit(
    name: str, compiled: Compiled
) -> None:
    test_company.check(Compile(name, "float32", LONGEST), compiled)
