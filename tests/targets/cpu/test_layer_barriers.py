"""How often the threads of a step wait for each other in a layer of a whole model."""

from __future__ import annotations

from functools import cache

import pytest

from ingot.artifact.formats import Storage
from ingot.artifact.plan import Limits, Plan
from ingot.compiler.lower import lower
from ingot.compiler.quantization.choose import choose_storage
from ingot.compiler.quantization.graph_matrices import matrices_in
from ingot.targets.cpu.barriers import SIZES, barriers
from ingot.targets.cpu.kind import KIND
from ingot.targets.cpu.operands import Operands
from tests.compiler import plans

LIMITS = Limits(
    max_model_len=256, max_num_seqs=4, max_num_batched_tokens=64, max_logit_rows=4, page_size=16
)
STORED = {"bfloat16": None, "int8": Storage(8, 64), "int4": Storage(4, 32)}
EPILOGUES = ("group_head_products", "group_gates", "group_rounding", "group_residuals")


@cache
def primitives(stored: str) -> Plan:
    """That of the bundled model: layers of Qwen3."""
    storage = choose_storage(matrices_in(plans.graph()), STORED[stored], (), "bfloat16")
    return lower(plans.final_graph("bfloat16", integers=storage), LIMITS, storage)


@cache
def plan(stored: str, disable: tuple[str, ...] = ()) -> Plan:
    """The same as a CPU carries it out."""
    return KIND.place(KIND.group(KIND.rewrite(primitives(stored)), disable)[0])


def waits(plan: Plan, *, even: bool = True) -> tuple[int, ...]:
    """Barriers of a layer in steps of few, some and many rows; KV heads dealt evenly or not."""
    operands = Operands(plan)
    layer = [
        barrier
        for kernel, barrier in zip(operands.work, barriers(operands), strict=True)
        if kernel.origin.startswith("model.layers.3.")
    ]
    found = [barrier.even if even else barrier.uneven for barrier in layer]
    return tuple(sum(size in sizes for sizes in found) for size in SIZES)


@pytest.mark.cases(core=1)
@pytest.mark.parametrize("stored", ["bfloat16", "int8"])
def test_threads_wait_for_norms_and_products_alone(stored: str) -> None:
    assert waits(plan(stored)) == (4, 5, 2)


@pytest.mark.cases(core=1)
@pytest.mark.parametrize("stored", ["bfloat16", "int8", "int4"])
def test_with_unequally_many_heads_they_wait_for_attention_too(stored: str) -> None:
    assert waits(plan(stored), even=False) == (5, 5, 2)


def test_heads_without_whole_groups_are_rounded_by_rows() -> None:
    """Blocks of 128 are two heads of this model."""
    assert waits(plan("int4")) == (4, 5, 2)


@pytest.mark.parametrize(
    "stored, disable, expected",
    [
        ("bfloat16", EPILOGUES, (5, 7, 2)),
        ("bfloat16", ("group_head_products",), (5, 6, 2)),
        ("bfloat16", ("group_gates",), (4, 6, 2)),
        ("int8", EPILOGUES, (5, 7, 2)),
        ("int8", ("group_rounding",), (4, 6, 2)),
    ],
)
def test_without_epilogues_they_wait_more(
    stored: str, disable: tuple[str, ...], expected: tuple[int, ...]
) -> None:
    assert waits(plan(stored, disable)) == expected
