"""Rewrites a plan for a CPU, before grouping: it multiplies integers with integers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ingot.artifact.formats import Format, rounded_rows
from ingot.artifact.plan import Buffer, Instruction, Plan
from ingot.artifact.traits import traits_of


def round_activations(plan: Plan, fine: Collection[str] = ()) -> Plan:
    """Rounds activations to integers where weights are, in the blocks of the weights.

    They become int8; those that a parameter of `fine` multiplies become int16.

    Before:
        y = linear(x, W)                        W int4 or int8 in blocks of 128, x float32
    After:
        x8 = cast(x);  y = linear(x8, W)        x8 int8 in blocks of 128

    Products that read the same rows in the same format share a cast.
    """
    rounded: dict[tuple[str, Format], str] = {}
    buffers, instructions = list(plan.buffers), list[Instruction]()
    for instruction in plan.instructions:
        traits = traits_of(instruction)
        if traits.matrix:
            weight = plan.buffer(instruction.inputs[traits.matrix])
            argument = traits.multiplied
            x = instruction.inputs[argument]
            if block := weight.format.block:
                is_fine = not {weight.name, *weight.sources}.isdisjoint(fine)
                form = rounded_rows(block, "int16" if is_fine else "int8")
                if (x, form) not in rounded:
                    cast = _cast(plan.buffer(x), form, instruction)
                    rounded[x, form] = cast[1].name
                    instructions.append(cast[0])
                    buffers.append(cast[1])
                inputs = instruction.inputs | {argument: rounded[x, form]}
                instruction = replace(instruction, inputs=inputs)
        instructions.append(instruction)
    return replace(plan, buffers=tuple(buffers), instructions=tuple(instructions))


def round_queries(plan: Plan) -> Plan:
    """Has attention round queries to int8 where its keys are.

    Rows that are keys and values become wider numbers instead.
    """
    instructions = list[Instruction]()
    for i in plan.instructions:
        if traits_of(i).meets_tokens and "v_cache" in i.inputs:
            in_integers = plan.buffer(i.inputs["k_cache"]).format.is_scaled
            i = replace(i, attrs=i.attrs | {"rounds_queries": in_integers})
        instructions.append(i)
    return replace(plan, instructions=tuple(instructions))


def _cast(x: Buffer, form: Format, reader: Instruction) -> tuple[Instruction, Buffer]:
    """Cast of what a product reads; for experts, each pick has blocks of its own."""
    out = Buffer(
        name=f"{x.name}_{form.dtype}_b{form.block}",
        format=form,
        shape=x.shape if traits_of(reader).stacked else (x.shape[0], x.columns),
        kind="arena",
    )
    outputs = {"out": out.name}
    return Instruction(
        op="cast", inputs={"x": x.name}, outputs=outputs, attrs={}, origin=reader.origin
    ), out
