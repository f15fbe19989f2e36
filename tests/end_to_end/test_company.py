"""Every family, compiled: the same bits alone, in company, in chunks, after a preemption, and with
a cached prefix."""

from __future__ import annotations

from dataclasses import replace

import pytest
from _pytest.mark import ParameterSet

from ingot.runtime.config import EngineConfig
from ingot.runtime.llm import LLM
from ingot.runtime.pool_size import PoolSize
from tests.end_to_end.support import Compile, Compiled
from tests.runtime import test_speculation as speculation
from tests.runtime.speculated import NO_TEXT, SPECULATIVE, requests
from tests.runtime.test_company import NUM_TOKENS, compare, prompts_of, run
from tests.support.core import core
from tests.support.tiny_models import FAMILIES, STATES, VOCAB_SIZE

pytestmark = pytest.mark.deterministic

LONGEST = 312  # as in other tests, which share the artifacts
NUM_PAGES = 8  # two of the sequences at their longest: with more, none yields with a window
NUM_SLOTS = 3


def named(case: Compile | ParameterSet) -> str:
    """The model of a case, whether it is marked or not."""
    return (case if isinstance(case, Compile) else case.values[0]).name


CASES = core(
    further=[
        Compile("deepseek_v3_odd", "bfloat16", LONGEST),
        Compile("gptoss", "bfloat16", LONGEST),
        Compile("deepseek_v2", "bfloat16", LONGEST, quantize="int4", kv_dtype="int8"),
        Compile("deepseek_v3_experts", "bfloat16", LONGEST, quantize="int4", kv_dtype="int8"),
    ],
    slow=[
        Compile("mixtral", "float32", LONGEST),
        Compile("qwen3moe_unnormalised", "bfloat16", LONGEST, quantize="int8"),
        Compile("deepseek_v3_experts", "bfloat16", LONGEST),
        *(
            Compile(name, "bfloat16", LONGEST, quantize=kind, kv_dtype=kv_dtype)
            for kind, kv_dtype in (("none", "auto"), ("int8", "auto"), ("int4", "int8"))
            for name in FAMILIES
        ),
    ],
)

# A model that keeps states computes no drafts.
DRAFTED = [case for case in CASES if named(case) not in STATES]


@pytest.mark.cases(thorough=1)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name}-{case.quantize}")
def test_company_preemption_and_cached_prefixes_change_no_bit(
    case: Compile, compiled: Compiled
) -> None:
    check(case, compiled)


def check(case: Compile, compiled: Compiled) -> None:
    """Prompts share prefixes, and together need more pages than there are."""
    _, artifact = compiled(case)
    prompts = prompts_of(0, VOCAB_SIZE)
    assert compare(artifact, prompts, config=EngineConfig(chunk_tokens=7)) == 0
    with LLM(artifact) as llm:
        plan = llm.artifact.plan
    slots = NUM_SLOTS * bool(plan.slot_bytes)
    nbytes = PoolSize(num_pages=NUM_PAGES, num_slots=slots).nbytes(plan)
    assert compare(artifact, prompts, kv_cache_bytes=nbytes) == 0
    with LLM(artifact, max_model_len=NUM_TOKENS, kv_cache_bytes=nbytes) as llm:
        run(llm, prompts, 0)
        counters = llm.counters()
        assert counters.num_pages == NUM_PAGES
        assert counters.num_preemptions > 0
        assert counters.prefix_cache.num_evictions > 0


@pytest.mark.cases(thorough=2)
@pytest.mark.parametrize("case", DRAFTED, ids=lambda case: f"{case.name}-{case.quantize}")
def test_drafts_change_no_bit(case: Compile, compiled: Compiled) -> None:
    """Of windows, latent rows, experts and caches of int8; in chunks, and with few pages."""
    _, artifact = compiled(case)
    asked = requests(5, 60, VOCAB_SIZE, NUM_TOKENS, NO_TEXT)
    with LLM(artifact) as llm:
        nbytes = 3 * NUM_PAGES * sum(llm.artifact.plan.page_sizes())
    for options in ({"config": replace(SPECULATIVE, chunk_tokens=7)}, {"kv_cache_bytes": nbytes}):
        options["max_model_len"] = NUM_TOKENS
        assert speculation.compare(artifact, asked, 0.2, VOCAB_SIZE, **options) == []
