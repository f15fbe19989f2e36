"""Compiled models that keep states beside pages: the logits of `transformers`, greedy tokens, what
`explain` tells of their records, and the same bits in any company."""

from __future__ import annotations

import pytest

from ingot.compiler.explain import explain
from ingot.compiler.needs import Use
from ingot.runtime.llm import LLM
from tests.end_to_end import integers, test_company
from tests.end_to_end.support import Compile, Compiled, check_logits, limit_of
from tests.end_to_end.test_families import NEW_TOKENS, check_greedy
from tests.support.core import core

LONGEST = 300 + NEW_TOKENS
FIRST = Compile("qwen35", "float32", LONGEST)


@pytest.mark.parametrize(
    "case",
    core(
        FIRST,
        further=[
            Compile("qwen3next", "float32", LONGEST),
            Compile("qwen35moe", "bfloat16", LONGEST),
        ],
    ),
    ids=lambda case: f"{case.name}-{case.dtype}",
)
def test_compiled_logits_and_tokens_are_those_of_transformers(
    case: Compile, compiled: Compiled
) -> None:
    model_dir, artifact = compiled(case)
    limit = limit_of(case.name, case.dtype)
    with LLM(artifact) as llm:
        check_logits(llm, model_dir, (1, 2, 17, 40), limit)
        check_greedy(llm, model_dir, 17, limit)
        plan, model = llm.artifact.plan, llm.artifact.manifest.model
    use = Use(context=64, seats=3, memory_bytes=10**9)
    (told,) = (each for each in explain(model_dir, use=use).ways if each.name == case.dtype)
    cache = told.caches[0]
    assert (cache.bytes_per_sequence, cache.bytes_per_token) == (
        plan.slot_bytes,
        model.kv_bytes_per_token,
    )
    pages = -(-64 // plan.limits.page_size) * plan.limits.page_size
    assert cache.cache_bytes >= 3 * (plan.slot_bytes + pages * model.kv_bytes_per_token)


@pytest.mark.thorough
def test_matrices_in_integers_leave_alone_what_steers_states(compiled: Compiled) -> None:
    model_dir, artifact = compiled(Compile("qwen35", "bfloat16", LONGEST, quantize="int4"))
    with LLM(artifact) as llm:
        integers.check_integers(llm, model_dir, (1, 17), limit_of("qwen35", "int8"))
        stored = {b.name: b.format.dtype for b in llm.artifact.plan.of_kind("weight")}
    mixer = "model.layers.0.self_attn"
    assert stored[f"{mixer}.qkv_z_proj.weight"] == stored[f"{mixer}.out_proj.weight"] == "int4"
    assert stored[f"{mixer}.ba_proj.weight"] == "bfloat16"
    others = ("ba_proj.bias", "conv.weight", "decay", "norm.weight")
    assert {stored[f"{mixer}.{name}"] for name in others} == {"float32"}


@pytest.mark.thorough
@pytest.mark.deterministic
def test_company_preemption_and_cached_prefixes_change_no_bit(compiled: Compiled) -> None:
    test_company.check(FIRST, compiled)
