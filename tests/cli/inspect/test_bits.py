"""The bits of matrices by layer, as text."""

from __future__ import annotations

from dataclasses import replace

from ingot.artifact.formats import Format, rounded_rows
from ingot.artifact.plan import Buffer, Instruction, Plan
from ingot.cli.inspect.bits import bits_by_layer
from tests.cli.sample_artifact import sample_plan

FORMATS = {
    4: Format("int4", 128, 32, "float16", zeros=True),
    8: Format("int8", 128, 128, "float16"),
    0: Format("bfloat16"),
}


def plan_of(bits: dict[str, list[int]], fine: tuple[str, ...] = ()) -> Plan:
    """A product with each matrix; those of `fine` read int16."""
    buffers, instructions = list[Buffer](), list[Instruction]()
    for name, each in bits.items():
        for layer, count in enumerate(each):
            weight = f"model.layers.{layer}.{name}.weight"
            form = rounded_rows(128, "int16" if weight in fine else "int8")
            buffers += [
                Buffer(name=weight, format=FORMATS[count], shape=(64, 256), kind="weight"),
                Buffer(name=f"x.{weight}", format=form, shape=("N", 256), kind="arena"),
            ]
            inputs = {"x": f"x.{weight}", "weight": weight}
            instructions.append(
                Instruction(op="linear", inputs=inputs, outputs={}, attrs={}, origin="")
            )
    return replace(
        sample_plan(), buffers=tuple(buffers), instructions=tuple(instructions), groups=()
    )


def test_a_line_shows_a_matrix_and_a_place_a_layer() -> None:
    fine = ("model.layers.1.up.weight",)
    up, down = bits_by_layer(plan_of({"up": [4, 8, 4], "down": [8, 0, 8]}, fine))
    assert (up.name, up.lines) == ("model.layers.*.up", ("484", " ^"))
    assert (down.name, down.lines) == ("model.layers.*.down", ("8-8", ""))


def test_layers_that_are_alike_need_no_picture() -> None:
    assert bits_by_layer(plan_of({"up": [4, 4], "down": [8, 8]})) == ()


def test_rows_alone_may_differ() -> None:
    found = bits_by_layer(plan_of({"up": [4, 4]}, ("model.layers.0.up.weight",)))
    assert [each.lines for each in found] == [("44", "^")]
