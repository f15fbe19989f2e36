"""How often the threads of a step wait for each other in a layer of a whole model."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from ingot.artifact.plan import Limits, Plan
from ingot.artifact.target import Target
from ingot.compiler.cpp.barriers import barriers
from ingot.compiler.cpp.operands import Operands
from ingot.compiler.export import export
from ingot.compiler.lower import lower
from ingot.models import registry
from ingot.passes import runner
from ingot.passes.pipeline import pipeline

MODEL = Path(__file__).parents[3] / "golden" / "models" / "shakespeare"
LIMITS = Limits(
    max_model_len=256, max_num_seqs=4, max_num_batched_tokens=64, max_logit_rows=4, page_size=16
)
EPILOGUES = ("fuse_linear_rope_kv_write", "fuse_gated_linears", "fuse_residuals")


@cache
def plan(disable: tuple[str, ...] = ()) -> Plan:
    """That of the bundled model: a layer of Qwen3."""
    config = registry.load_config(MODEL)
    gm = export(registry.build(config, max_model_len=256), config)
    steps = pipeline(dtype="bfloat16", disable=disable)
    runner.run(gm, steps, config, target=Target("cpu", "portable"))
    return lower(gm, LIMITS)


def waits(plan: Plan) -> tuple[int, int]:
    """Barriers of a layer in steps of one token, and in larger ones; KV heads dealt evenly."""
    layer = [
        barrier
        for instruction, barrier in zip(plan.instructions, barriers(Operands(plan)), strict=True)
        if instruction.origin.startswith("model.layers.3.")
    ]
    return sum(b.single for b in layer), sum(b.larger for b in layer)


def test_threads_wait_for_products_alone() -> None:
    assert waits(plan()) == (4, 6)


@pytest.mark.parametrize(
    "disable, expected",
    [(EPILOGUES, (5, 8)), (EPILOGUES[:1], (5, 7)), (EPILOGUES[1:2], (4, 7))],
)
def test_without_epilogues_they_wait_more(
    disable: tuple[str, ...], expected: tuple[int, int]
) -> None:
    assert waits(plan(disable)) == expected
