"""Latent attention, compiled: against `transformers`."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingot.compiler.kept_front import front_of
from ingot.compiler.model import read_model
from ingot.compiler.options import Clock, CompileOptions, silent
from ingot.models.model_dir import ModelDir
from ingot.runtime.llm import LLM
from tests.end_to_end import integers
from tests.end_to_end.support import LIMITS, Compile, Compiled, check_logits
from tests.end_to_end.test_families import LENGTHS, check_greedy
from tests.support.core import core
from tests.support.latent_models import CASES
from tests.support.tiny_models import save_random

LONGEST = 312
INT8_LIMIT = 4e-2  # of logits where weights, or what is cached of a token, are in int8
FIRST = Compile("deepseek_v3_odd", "bfloat16", LONGEST)
COMPILES = [Compile(name, dtype, LONGEST) for name in CASES for dtype in LIMITS]
STORED = [
    Compile("deepseek_v2", "bfloat16", LONGEST, quantize=kind, kv_dtype=kv_dtype)
    for kind, kv_dtype in (("none", "int8"), ("int8", "auto"), ("int4", "int8"))
]
ONES = core(FIRST, further=[Compile("deepseek_v2", "float32", LONGEST)], slow=COMPILES)


def spelled(case: Compile) -> str:
    return f"{case.name}-{case.dtype}-{case.quantize}-{case.kv_dtype}"


@pytest.mark.thorough
@pytest.mark.parametrize("case", ONES, ids=spelled)
def test_compiled_logits_equal_those_of_transformers(case: Compile, compiled: Compiled) -> None:
    model_dir, artifact = compiled(case)
    with LLM(artifact) as llm:
        check_logits(llm, model_dir, LENGTHS, LIMITS[case.dtype])
        check_greedy(llm, model_dir, 17, LIMITS[case.dtype])


@pytest.mark.slow
@pytest.mark.parametrize("case", core(further=STORED[-1:], slow=STORED), ids=spelled)
def test_rows_and_weights_in_integers(case: Compile, compiled: Compiled) -> None:
    model_dir, artifact = compiled(case)
    with LLM(artifact) as llm:
        integers.check_integers(llm, model_dir, (1, 17, 300))
        if case.quantize != "int4":
            check_logits(llm, model_dir, (1, 17, 300), INT8_LIMIT)


def test_a_token_is_cached_as_one_row(tmp_path: Path) -> None:
    """44 + 4 values of two bytes in each of two layers, whatever the heads."""
    folder = save_random(FIRST.name, tmp_path / "model", FIRST.dtype, tokenizer=True)
    options = CompileOptions(dtype=FIRST.dtype, max_model_len=LONGEST)
    model = read_model(ModelDir.open(folder), options, Clock(silent))
    with model.checkpoint:
        plan = front_of(model, Clock(silent)).plan
    assert [state.record for state in plan.spec.states] == [(1, 48)] * 2
    assert plan.kv_bytes_per_token == 2 * 48 * 2
