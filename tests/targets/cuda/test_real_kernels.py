"""The machine code of models of real shapes: no gate finds a fault, and products fill the GPU."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from ingot.artifact.architectures import ARCHITECTURES
from ingot.artifact.formats import DTYPE_BITS, Format
from ingot.artifact.plan import Plan
from ingot.artifact.target import Target
from ingot.cli.inspect.gpu import gpu_kernels
from ingot.targets.cuda.calls_products import CALLS
from ingot.targets.cuda.generate import EMITTERS
from ingot.targets.cuda.operands import Operands
from ingot.targets.work import Work
from tests.support.core import core
from tests.targets.cpu.experts import Experts
from tests.targets.cuda.known_faults import unexpected_faults
from tests.targets.cuda.matrices import PAIRS, TWO_LEVELS
from tests.targets.cuda.mixing import Mixture
from tests.targets.cuda.runs import one_group
from tests.targets.cuda.shapes import built_kernels, built_of, plan_of
from tests.targets.cuda.test_products import Case
from tests.targets.cuda.test_rows import embedding
from tests.targets.cuda.tiny import TARGETS
from tests.targets.sketch import Sketch

SMALL, LARGE, MIXED = "qwen3-0.6b", "mistral-7b", "qwen3-30b-a3b-1"
MOST_BYTES = 10**6  # of all binaries
OTHERS = (*TARGETS[:1], *TARGETS[2:])
CASES = core(
    (SMALL, "none", "bfloat16", TARGETS[1]),
    (SMALL, "int4", "float16", TARGETS[1]),
    (SMALL, "int4", "bfloat16", TARGETS[0]),
    (SMALL, "int8", "bfloat16", TARGETS[2]),
    (MIXED, "int4", "bfloat16", TARGETS[1]),
    further=(),
    slow=(
        (SMALL, "int8", "bfloat16", TARGETS[1]),
        (SMALL, "int4", "bfloat16", TARGETS[1]),
        *product([SMALL], ["none", "int8"], ["float16"], TARGETS[1:2]),
        (LARGE, "none", "bfloat16", TARGETS[1]),
        (LARGE, "int4", "bfloat16", TARGETS[1]),
        *product([SMALL], ["none", "int8", "int4"], ["bfloat16"], OTHERS),
        *product([LARGE], ["none"], ["bfloat16"], OTHERS),
        *product([MIXED], ["none", "int8"], ["bfloat16"], TARGETS[1:2]),
        *product([MIXED], ["none", "int4"], ["bfloat16"], OTHERS),
        ("mixtral-8x7b-1", "int4", "float16", TARGETS[1]),
    ),
)
# int4 with zeros keeps 24 bytes of a thread in local memory on sm_80.
PAIRED = [form for form in dict(PAIRS) if str(form) != "int4-b16-zeros"]
# Scales and multipliers of integers do not count as under way, and grids are not round numbers.
NEARLY = 0.9
FILLING = 32_000  # keys that are enough programs of attention for every card


def with_zeros(plan: Plan) -> Plan:
    """The plan with a zero, and no multipliers, in each block of its integers."""
    buffers = (
        replace(b, format=replace(b.format, group=b.format.block, zeros=True))
        if b.kind == "weight" and b.format.is_scaled else b
        for b in plan.buffers
    )  # fmt: skip
    return replace(plan, buffers=tuple(buffers))


def case_id(value: object) -> str:
    return value.level if isinstance(value, Target) else str(value)


@pytest.mark.cases(thorough=1)
@pytest.mark.parametrize("shape, stored, dtype, target", CASES, ids=case_id)
@pytest.mark.thorough
def test_kernels_of_real_shapes(
    tmp_path: Path, shape: str, stored: str, dtype: str, target: Target
) -> None:
    plan = plan_of(tmp_path, shape, stored, target, dtype)
    built = built_of(tmp_path, plan, target)
    assert unexpected_faults(built, tmp_path, target) == []
    files = {binary.file for binary in built.binaries}
    assert sum((tmp_path / file).stat().st_size for file in files) <= MOST_BYTES
    shown = gpu_kernels(plan, built, target.level)
    attention, *more = (each for each in shown.reads if each.kernel == "paged_attention")
    assert not more
    # The router is small, and its numbers too wide for matrix instructions.
    others = [each for each in shown.reads if each != attention]
    products = [each for each in others if not each.what.endswith("float32")]
    assert len(products) >= 5, "of a layer, and the head"
    for each in products:
        there_is = each.nbytes / shown.multiprocessors
        assert each.under_way >= NEARLY * min(shown.needed, there_is), each
    heads, columns = plan.spec.states[0].record
    cached = 2 * heads * columns * DTYPE_BITS[dtype] // 8
    assert (attention.nbytes, attention.programs) == (512 * cached, heads * 2)
    filled = gpu_kernels(plan, built, target.level, FILLING).reads
    assert next(each for each in filled if each.nbytes == FILLING * cached).bandwidth > 0.9


@pytest.mark.slow
def test_kernels_in_float32(tmp_path: Path) -> None:
    """Their grids are those of 16 bits, and do not fill a GPU where the matrix is small."""
    plan = plan_of(tmp_path, SMALL, "none", TARGETS[1], "float32")
    built = built_of(tmp_path, plan, TARGETS[1])
    assert unexpected_faults(built, tmp_path, TARGETS[1]) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape, target", [(SMALL, TARGETS[0]), (SMALL, TARGETS[2]), (MIXED, TARGETS[1])], ids=case_id
)
def test_kernels_of_integers_with_zeros(tmp_path: Path, shape: str, target: Target) -> None:
    """Blocks of 128 columns, as most checkpoints have them."""
    plan = plan_of(tmp_path, shape, "int4", target)
    built = built_of(tmp_path, with_zeros(plan), target)
    assert unexpected_faults(built, tmp_path, target) == []


@pytest.mark.thorough
@pytest.mark.parametrize("group", [128, 64, 32])
def test_a_product_of_integers_with_zeros(tmp_path: Path, group: int) -> None:
    """As all others are spelled: for few rows, which are read as fast as the card can."""
    form, target = Format("int4", 128, group, "float16", zeros=True), TARGETS[1]
    plan = Case("linear", form, 1024, 4096).plan
    product, *_ = CALLS["linear"](Operands(plan), Work(plan, plan.groups[0]))
    few, more, _ = map(product.spec, product.choices)
    built = built_kernels(tmp_path, target, few, more)
    assert unexpected_faults(built, tmp_path, target) == []


@pytest.mark.cases(thorough=4)
@pytest.mark.parametrize("target", TARGETS[:2], ids=case_id)
@pytest.mark.parametrize("kind", core("Q4_K", "Q6_K", further=[], slow=TWO_LEVELS))
@pytest.mark.thorough
def test_a_product_of_two_levels(tmp_path: Path, kind: str, target: Target) -> None:
    """Its steps have fewer columns than gates ask for, and nothing else is at fault."""
    plan = Case("linear", TWO_LEVELS[kind][0], 1024, 4096).plan
    operands = Operands(plan, ARCHITECTURES[target.level])
    product, *_ = CALLS["linear"](operands, Work(plan, plan.groups[0]))
    built = built_kernels(tmp_path, target, *map(product.spec, product.choices))
    assert of_wide_steps(unexpected_faults(built, tmp_path, target)) == []


@pytest.mark.cases(thorough=1)
@pytest.mark.parametrize(
    "form, target",
    core(further=[(PAIRS[5][0], TARGETS[1])], slow=product(PAIRED, TARGETS)),
    ids=case_id,
)
def test_a_product_of_blocks_in_pairs(tmp_path: Path, form: Format, target: Target) -> None:
    """As one of two levels: its steps are two blocks."""
    plan = Case("linear", form, 1024, 4096).plan
    operands = Operands(plan, ARCHITECTURES[target.level])
    multiply, *_ = CALLS["linear"](operands, Work(plan, plan.groups[0]))
    built = built_kernels(tmp_path, target, *map(multiply.spec, multiply.choices))
    assert of_wide_steps(unexpected_faults(built, tmp_path, target)) == []


def of_wide_steps(faults: list[str]) -> list[str]:
    """Those that are not of loads of few bytes at a time."""
    narrow = "loads are of fewer bytes|no load of 16 bytes|bytes under way"
    return [fault for fault in faults if not re.search(narrow, fault)]


@pytest.mark.thorough
def test_experts_and_a_table_of_two_levels(tmp_path: Path) -> None:
    """Their kernels are built, too."""
    specs, target = [], TARGETS[1]
    for kind in ("Q5_K", "Q6_K", "IQ4_XS"):
        form, width = TWO_LEVELS[kind]
        s = Sketch()
        embedding(form)(s, width, "bfloat16")
        plans = [one_group(s.plan(), "embedding")]
        plans.append(Mixture(Experts(4, 2, 512, 1024, format=form)).sketch[0])
        for plan, kernel in zip(plans, ("embedding", "expert_gate"), strict=True):
            group = next(group for group in plan.groups if group.kernel == kernel)
            for call in EMITTERS[kernel](Operands(plan), Work(plan, group)):
                specs += [call.spec(choice) for choice in call.choices]
    built = built_kernels(tmp_path, target, *{repr(spec): spec for spec in specs}.values())
    assert of_wide_steps(unexpected_faults(built, tmp_path, target)) == []
