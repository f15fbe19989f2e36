"""How weights are stored, and what is rounded on the way, from the plan alone."""

from __future__ import annotations

from dataclasses import replace

from ingot.artifact.formats import Format, rounded_rows
from ingot.artifact.plan import Buffer, Instruction, Plan
from ingot.artifact.spec import State
from ingot.cli.inspect.numerics import REORDERED, StoredAs, differences, weight_formats
from tests.cli.sample_artifact import sample_manifest, sample_plan

INT4 = Format("int4", 8, 4, "float16")


def rounded() -> Plan:
    """The sample with int4 weights, int8 activations before the head, and int8 keys."""
    plan = sample_plan()
    lookup, norm, product = plan.instructions
    embed, vector, first, second = plan.buffers
    x8 = Buffer(name="x8", format=rounded_rows(8), shape=("N", 8), kind="arena")
    cast = Instruction(op="cast", inputs={"x": "%1<b>"}, outputs={"out": "x8"}, attrs={}, origin="")
    product = replace(product, inputs={"x": "x8", "weight": "embed.weight"})
    state = State(name="k", format=rounded_rows(4), record=(2, 4))
    narrow = replace(first, format=Format("bfloat16"))
    return replace(
        plan,
        spec=replace(plan.spec, states=(state,)),
        buffers=(replace(embed, format=INT4), vector, narrow, second, x8),
        instructions=(lookup, norm, cast, product),
    )


def words(plan: Plan, dtype: str = "float32") -> list[str]:
    manifest = sample_manifest()
    numerics = replace(manifest.numerics, dtype=dtype)
    found = differences(replace(manifest, numerics=numerics), plan)
    assert found[-1].what == REORDERED and found[-1].tier == "exact"
    assert {each.tier for each in found[:-1]} <= {"numeric"}
    return [each.what for each in found[:-1]]


def test_weights_are_counted_by_format() -> None:
    assert weight_formats(sample_plan()) == (
        StoredAs(
            format="float32", tensors=2, nbytes=4 * (48 * 8 + 8),
            names=("embed.weight", "norm.weight"),
        ),
    )  # fmt: skip
    int4, wide = weight_formats(rounded())
    # Half a byte a number and a multiplier for four, a float16 for eight.
    assert (int4.format, int4.nbytes) == ("int4-g4-b8", 384 // 2 + 96 // 2 + 48 * 2)
    assert (wide.format, wide.some) == ("float32", "norm.weight")


def test_names_of_layers_are_one_and_many_are_shortened() -> None:
    plan = sample_plan()
    weight = plan.buffers[0]
    many = [replace(weight, name=f"layers.{n}.{part}") for n in (0, 10) for part in "abcdef"]
    (found,) = weight_formats(replace(plan, buffers=tuple(many)))
    assert (found.tensors, len(found.names)) == (12, 6)
    assert found.some == "layers.*.a, layers.*.b, layers.*.c, layers.*.d and 2 more"


def test_float32_differs_in_the_order_of_sums_alone() -> None:
    assert words(sample_plan()) == []


def test_every_rounding_is_said() -> None:
    weights, activations, integers, cache = words(rounded(), "bfloat16")
    assert weights == (
        "Tensors of weights are rounded when they are packed: 1 to int4-g4-b8, and 1 stay float32."
    )
    assert activations.startswith("Of 4 results of instructions 1 are rounded to bfloat16")
    assert "before 1 products with integer weights" in integers
    assert cache == "Keys and values are kept in int8, with a scale for each head."
