"""What the generator says of a plan, and what it refuses."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from ingot.artifact.codec import encode_plan
from ingot.artifact.plan import Attr, Buffer, Instruction, Plan
from ingot.artifact.target import Target
from ingot.errors import CodegenError
from ingot.ops import OPS
from ingot.targets.cpu.generate import Generated, WeightLayout, generate
from tests.targets.cpu import quantized
from tests.targets.cpu.cases import all_cases
from tests.targets.cpu.units import Unit

TARGET = "cpu:x86-64-v3"


def plan_of(*names: str) -> Plan:
    """A plan of the test cases of those names."""
    return Unit(tuple(c for c in all_cases() if c.name in names), TARGET).plan


def generated(plan: Plan) -> Generated:
    return generate(plan, Target.parse(TARGET))


def with_attrs(plan: Plan, **attrs: Attr) -> Plan:
    (only,) = plan.instructions
    return replace(plan, instructions=(replace(only, attrs={**only.attrs, **attrs}),))


def with_buffer(plan: Plan, name: str, change: Buffer) -> Plan:
    return replace(plan, buffers=tuple(change if b.name == name else b for b in plan.buffers))


def test_text_is_a_function_of_the_plan() -> None:
    names = [case.name for case in all_cases()]
    assert generated(plan_of(*names)) == generated(plan_of(*names))


def test_the_code_names_the_plan_it_was_generated_from() -> None:
    plan = plan_of("rms-37-f32")
    sha256 = hashlib.sha256(encode_plan(plan)).hexdigest()
    assert f"ingot_plan() {{ return 0x{sha256[:16]}u; }}" in generated(plan).source


def test_no_line_is_longer_than_a_page_is_wide() -> None:
    source = generated(plan_of("rope-write-64-bf16", "attention-128-bf16", "tied-f32", "head-f32"))
    assert max(map(len, source.source.splitlines())) <= 100


def test_every_instruction_carries_its_number_and_origin() -> None:
    source = generated(plan_of("rms-37-f32", "linear-64x64-f32")).source
    assert "// 0 cases.linear-64x64-f32: " in source
    assert "// 1 cases.rms-37-f32: " in source


def test_an_origin_cannot_leave_its_comment() -> None:
    plan = plan_of("rms-37-f32")
    (only,) = plan.instructions
    plan = replace(plan, instructions=(replace(only, origin="a\n#error b"),))
    assert "\n#error" not in generated(plan).source


def test_weights_of_linears_are_panels_and_others_rows() -> None:
    layouts = generated(plan_of("linear-200x144-bf16", "embedding-37-f32")).weights
    assert layouts == (
        WeightLayout("embedding-37-f32.weight", "rows", "float32", (50, 37)),
        WeightLayout("linear-200x144-bf16.weight", "panels", "bfloat16", (144, 200)),
        WeightLayout("linear-200x144-bf16.bias", "rows", "float32", (144,)),
    )


def test_a_shared_embedding_is_stored_once_as_panels() -> None:
    result = generated(plan_of("head-bf16", "tied-bf16"))
    assert result.weights == (WeightLayout("head-bf16.weight", "panels", "bfloat16", (50, 40)),)
    assert "PanelTable<bf16, 40, 50>" in result.source


def test_an_unknown_op_is_named_with_its_place() -> None:
    plan = plan_of("rms-37-f32")
    strange = Instruction(op="wkv", inputs={}, outputs={}, attrs={}, origin="model.layers.3")
    with pytest.raises(CodegenError, match=r"wkv at model\.layers\.3 has no CPU kernel"):
        generated(replace(plan, instructions=(strange,)))


@pytest.mark.parametrize(
    ("page_size", "size", "found"),
    [
        (8, 64, "pages of 8 tokens"),
        (24, 64, "pages of 24 tokens"),
        (16, 30, "heads of size 30"),
        (16, 516, "heads of size 516"),
    ],
)
def test_pages_and_heads_that_no_kernel_takes_are_refused(
    page_size: int, size: int, found: str
) -> None:
    plan = plan_of("write-64-f32")
    for name in ("write-64-f32.k_cache", "write-64-f32.v_cache"):
        cache = replace(plan.buffer(name), shape=(0, 2, page_size, size))
        plan = with_buffer(plan, name, cache)
    with pytest.raises(CodegenError, match=found):
        generated(plan)


def test_mixed_element_types_are_refused() -> None:
    plan = plan_of("linear-64x64-f32")
    name = "linear-64x64-f32.weight"
    plan = with_buffer(plan, name, replace(plan.buffer(name), dtype="bfloat16"))
    with pytest.raises(CodegenError, match="x is float32 and the weight bfloat16"):
        generated(plan)


def test_a_norm_weight_must_be_float32() -> None:
    plan = plan_of("rms-37-f32")
    name = "rms-37-f32.weight"
    plan = with_buffer(plan, name, replace(plan.buffer(name), dtype="bfloat16"))
    with pytest.raises(CodegenError, match="the weight is bfloat16"):
        generated(plan)


def test_a_scalar_that_is_not_finite_is_refused() -> None:
    with pytest.raises(CodegenError, match="inf is not finite"):
        generated(with_attrs(plan_of("rms-37-f32"), eps=float("inf")))


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(CodegenError, match="activation 'swish7' is unknown"):
        generated(with_attrs(plan_of("silu-37-f32"), kind="swish7"))


def test_a_missing_operand_is_named() -> None:
    plan = plan_of("rms-37-f32")
    (only,) = plan.instructions
    broken = replace(only, inputs={"x": only.inputs["x"]})
    with pytest.raises(CodegenError, match="has no operand 'weight'"):
        generated(replace(plan, instructions=(broken,)))


def test_other_kinds_of_target_are_refused() -> None:
    with pytest.raises(CodegenError, match="is not a CPU"):
        generate(plan_of("rms-37-f32"), Target("cuda", "sm_90"))


def test_every_op_of_a_final_graph_has_a_case() -> None:
    """`attention` is the plain module's own; a pass rewrites it onto the cache."""
    plain = {case.op for case in all_cases()}
    narrow = {instruction.op for instruction in quantized.unit(TARGET).plan.instructions}
    assert plain | narrow == OPS.keys() - {"attention"}
