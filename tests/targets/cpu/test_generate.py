"""What the generator says of a plan, and what it refuses."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from ingot.artifact.codec import encode_plan
from ingot.artifact.formats import Format, rounded_rows
from ingot.artifact.plan import Attr, Buffer, Instruction, Plan
from ingot.artifact.target import Target
from ingot.errors import CodegenError
from ingot.targets.cpu.calls import CALLS
from ingot.targets.cpu.generate import generate, weight_layouts
from ingot.targets.cpu.weights import WeightLayout
from ingot.targets.target import target_named
from tests.targets.cpu.cases import BEST, RECORDS, SEGMENTS, every_case, unit
from tests.targets.cpu.matrices import MATRICES
from tests.targets.cpu.units import Unit, apart
from tests.targets.sketch import STEP, Sketch, normal

TARGET = "cpu:x86-64-v3"


def plan_of(*names: str, kind: str = "f32") -> Plan:
    """A plan of the test cases of those names."""
    return Unit({name: every_case(kind)[name] for name in names}, TARGET).plan


def generated(plan: Plan) -> str:
    """The text of all units."""
    return "\n".join(generate(plan, target_named(TARGET)).values())


def with_attrs(plan: Plan, **attrs: Attr) -> Plan:
    (only,) = plan.instructions
    return replace(plan, instructions=(replace(only, attrs={**only.attrs, **attrs}),))


def with_buffer(plan: Plan, name: str, change: Buffer) -> Plan:
    return replace(plan, buffers=tuple(change if b.name == name else b for b in plan.buffers))


@pytest.mark.parametrize("kind", ["f32", "bf16", "integer"])
def test_text_is_a_function_of_the_plan(kind: str) -> None:
    assert generated(plan_of(*every_case(kind), kind=kind)) == generated(
        plan_of(*every_case(kind), kind=kind)
    )


def test_the_code_names_the_plan_it_was_generated_from() -> None:
    plan = plan_of("rms-37")
    sha256 = hashlib.sha256(encode_plan(plan)).hexdigest()
    assert f"/* plan */ 0x{sha256[:16]}u" in generated(plan)


def test_no_line_is_longer_than_a_page_is_wide() -> None:
    source = generated(plan_of("rope-write-64", "attention-80", "tied", "head"))
    assert max(map(len, source.splitlines())) <= 100


def test_every_kernel_carries_its_number_and_origin() -> None:
    source = generated(plan_of("linear-64x64", "rms-37"))
    assert "// 0 cases.linear-64x64: " in source
    assert "// 1 cases.rms-37: " in source


def test_an_origin_cannot_leave_its_comment() -> None:
    plan = plan_of("rms-37")
    (only,) = plan.instructions
    plan = replace(plan, instructions=(replace(only, origin="a\n#error b"),))
    assert "\n#error" not in generated(plan)


def test_weights_of_linears_are_panels_and_others_rows() -> None:
    layouts = weight_layouts(plan_of("linear-200x144", "embedding-37"))
    form = Format("float32")
    assert layouts == (
        WeightLayout("linear-200x144.weight", "panels", form, (144, 200)),
        WeightLayout("linear-200x144.bias", "rows", form, (144,)),
        WeightLayout("embedding-37.weight", "rows", form, (83, 37)),
    )


def test_a_shared_embedding_is_stored_once_as_panels() -> None:
    plan = plan_of("tied", kind="bf16")
    (layout,) = weight_layouts(plan)
    assert layout == WeightLayout("tied.weight", "panels", Format("bfloat16"), (83, 40))
    assert "PanelTable<bf16, 40, 83>" in " ".join(generated(plan).split())


def test_an_unknown_op_is_named_with_its_place() -> None:
    plan = plan_of("rms-37")
    strange = Instruction(op="attention", inputs={}, outputs={}, attrs={}, origin="model.layers.3")
    with pytest.raises(CodegenError, match=r"attention at model\.layers\.3 has no CPU kernel"):
        generated(replace(plan, instructions=(strange,), groups=()))


def test_a_group_without_a_kernel_is_named() -> None:
    plan = plan_of("linear-27x27")
    strange = replace(plan.groups[0], kernel="linear_wkv")
    with pytest.raises(CodegenError, match="linear-27x27 has no CPU kernel linear_wkv"):
        generated(replace(plan, groups=(strange,)))


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
    plan = plan_of("write-64")
    for name in ("write-64.k_cache", "write-64.v_cache"):
        cache = replace(plan.buffer(name), shape=(0, 2, page_size, size))
        plan = with_buffer(plan, name, cache)
    with pytest.raises(CodegenError, match=found):
        generated(plan)


def test_mixed_element_types_are_refused() -> None:
    plan = plan_of("linear-64x64")
    name = "linear-64x64.weight"
    plan = with_buffer(plan, name, replace(plan.buffer(name), format=Format("bfloat16")))
    with pytest.raises(CodegenError, match="x is float32 and the weight bfloat16"):
        generated(plan)


def test_a_norm_weight_must_be_float32() -> None:
    plan = plan_of("rms-37")
    name = "rms-37.weight"
    plan = with_buffer(plan, name, replace(plan.buffer(name), format=Format("bfloat16")))
    with pytest.raises(CodegenError, match="the weight is bfloat16"):
        generated(plan)


def test_a_scalar_that_is_not_finite_is_refused() -> None:
    with pytest.raises(CodegenError, match="inf is not finite"):
        generated(with_attrs(plan_of("rms-37"), eps=float("inf")))


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(CodegenError, match="activation 'swish7' is unknown"):
        generated(with_attrs(plan_of("silu-37"), kind="swish7"))


def test_a_missing_operand_is_named() -> None:
    plan = plan_of("rms-37")
    (only,) = plan.instructions
    broken = replace(only, inputs={"x": only.inputs["x"]})
    with pytest.raises(CodegenError, match="has no operand 'weight'"):
        generated(replace(plan, instructions=(broken,)))


def test_other_kinds_of_target_are_refused() -> None:
    with pytest.raises(CodegenError, match="is not a CPU"):
        generate(plan_of("rms-37"), Target("cuda", "sm_90"))


@pytest.mark.parametrize(
    ("form", "found"),
    [
        (Format("int4", 48, 48, "float16"), "weights in int4-b48"),
        (Format("int4", 96, 32, "float16"), "weights in int4-g32-b96"),
        (Format("int8", 64, 64, "float16"), "x is int8-b96 and the weight int8-b64"),
    ],
)
def test_formats_that_no_kernel_takes_are_refused(form: Format, found: str) -> None:
    s = Sketch()
    x8 = s.call("cast", s.rows("x", 192), out="x8", form=rounded_rows(96))
    s.call("linear", x8, s.weight("w", normal(64, 192)))
    plan = apart(s.plan())
    if form.bits == 4:
        x8_of_blocks = replace(plan.buffer(x8), format=rounded_rows(form.block))
        plan = with_buffer(plan, x8, x8_of_blocks)
    plan = with_buffer(plan, "w", replace(plan.buffer("w"), format=form))
    with pytest.raises(CodegenError, match=found):
        generated(plan)


@pytest.mark.parametrize(("form", "rounds"), [(rounded_rows(16), False), (Format("float32"), True)])
def test_queries_that_are_not_rounded_as_keys_are_refused(form: Format, rounds: bool) -> None:
    s = Sketch()
    q, caches = s.rows("q", 4, 16), s.caches(2, 16, form)
    s.call("paged_attention", q, *caches, *STEP, scale=0.25, rounds_queries=rounds)
    with pytest.raises(CodegenError, match="queries are not rounded as keys are"):
        generated(apart(s.plan()))


def test_weights_in_integers_keep_their_parts_together() -> None:
    layouts = {w.name: w for w in weight_layouts(plan_of(*every_case("integer"), kind="integer"))}
    m = next(m for m in MATRICES if m.form.has_multipliers and m.extended)
    layout = layouts[f"{m.name}.weight"]
    assert (layout.layout, layout.format) == ("integer-panels", m.form)
    assert layouts[f"{m.name}.bias"].layout == "rows"


def test_every_kernel_has_a_case() -> None:
    units = (unit(kind, target) for kind, target in (*BEST, SEGMENTS, RECORDS))
    kernels = {work.kernel for each in units for work in each.work}
    assert kernels == CALLS.keys()
