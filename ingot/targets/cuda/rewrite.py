"""Rewrites a plan for a GPU, before grouping: it multiplies integers with 16 bits, and takes up the
tokens of recurrences in cells."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import replace

from ingot.artifact.cells import GRID, KEPT, Cells
from ingot.artifact.formats import Format
from ingot.artifact.plan import Buffer, Instruction, Plan
from ingot.artifact.traits import Role, traits_of, written_by
from ingot.ops import OPS

WIDE, BFLOAT16, FLOAT16 = Format("float32"), Format("bfloat16"), Format("float16")


def narrow_activations(plan: Plan) -> Plan:
    """Rounds activations to 16 bits where weights are integers: matrix units take no float32.

    That is float16 in a plan which has float16, and bfloat16 in any other. The primitive that makes
    such a value rounds it on the way out. Where something else reads the value, too, a cast does,
    which products share.

    Before:
        h = rms_norm(x, w);  y = linear(h, W)      W int4 or int8, h float32
    After:
        h = rms_norm(x, w);  y = linear(h, W)      h bfloat16 or float16
    """
    narrow = FLOAT16 if any(b.format == FLOAT16 for b in plan.buffers) else BFLOAT16
    read = dict.fromkeys(name for i in plan.instructions if (name := _multiplied(plan, i)))
    narrowed: set[str] = set()
    for name in read:
        narrowed |= _at_the_maker(plan, plan.root(name).name)
    casts = {
        name: _cast(plan, name, narrow) for name in read if plan.root(name).name not in narrowed
    }
    buffers = [
        replace(b, format=narrow) if plan.root(b.name).name in narrowed else b for b in plan.buffers
    ]
    buffers += [out for _, out in casts.values()]
    return replace(plan, buffers=tuple(buffers), instructions=tuple(_with_casts(plan, casts)))


def in_cells(plan: Plan) -> Plan:
    """Has recurrences take up tokens in cells, which matrix units can multiply.

    Their records then hold the rows of a cell beside the matrices; see `ingot.artifact.cells`.

    Before:
        y = recurrence(q, k, v, decay, state)            state [slots, H * D, P]
    After:
        y = recurrence(q, k, v, decay, state, grid=16)   state [slots, H * D + rows, P]
    """
    instructions, records = [], {}
    for instruction in plan.instructions:
        if "grid" in instruction.attrs:
            (state,) = written_by(instruction)
            given = instruction.inputs.items()
            shapes = {name: plan.buffer(each).shape[1:] for name, each in given if name in KEPT}
            sizes = {name: tuple(map(int, shape)) for name, shape in shapes.items()}
            records[state] = Cells(sizes, GRID).record
            instruction = replace(instruction, attrs=instruction.attrs | {"grid": GRID})
        instructions.append(instruction)
    states = [
        replace(state, record=records.get(state.name, state.record)) for state in plan.spec.states
    ]
    spec = replace(plan.spec, states=tuple(states))
    return replace(plan, spec=spec, instructions=tuple(instructions))


def _multiplied(plan: Plan, instruction: Instruction) -> str:
    """Float32 input that an instruction multiplies with integers; empty if there is none."""
    traits = traits_of(instruction)
    if not traits.matrix or not plan.buffer(instruction.inputs[traits.matrix]).format.is_scaled:
        return ""
    name = instruction.inputs[traits.multiplied]
    return name if plan.buffer(name).format == WIDE else ""


def _at_the_maker(plan: Plan, root: str) -> Set[str]:
    """Buffers that turn narrow where the maker of a buffer rounds: the buffer, and rows of it that
    are chosen. Empty if the maker cannot round, or something needs all digits."""
    while (maker := _maker(plan, root)) and (chosen := _chosen(maker)):
        root = plan.root(chosen).name
    if maker is None or "out_dtype" not in OPS[maker.op].signature.parameters:
        return set()
    roots = {root}
    for instruction in plan.instructions:
        reads = {plan.root(name).name for name in instruction.inputs.values()} & roots
        if reads and _chosen(instruction):
            roots |= set(instruction.outputs.values())
        elif reads and not _multiplied(plan, instruction):
            return set()
    return roots


def _maker(plan: Plan, root: str) -> Instruction | None:
    return next((i for i in plan.instructions if root in i.outputs.values()), None)


def _chosen(instruction: Instruction) -> str:
    """Buffer that an instruction takes rows of; empty if it computes something."""
    (argument, *_) = (*traits_of(instruction).arguments(Role.CHOSEN), "")
    return instruction.inputs.get(argument, "")


def _cast(plan: Plan, name: str, narrow: Format) -> tuple[Instruction, Buffer]:
    """A cast of what a product reads; its origin is that of the first product."""
    x, first = plan.buffer(name), next(i for i in plan.instructions if _multiplied(plan, i) == name)
    shape = x.shape if traits_of(first).stacked else (x.shape[0], x.columns)
    out = Buffer(name=f"{name}_{narrow}", format=narrow, shape=shape, kind="arena")
    cast = Instruction(
        op="cast", inputs={"x": name}, outputs={"out": out.name}, attrs={}, origin=first.origin
    )
    return cast, out


def _with_casts(plan: Plan, casts: dict[str, tuple[Instruction, Buffer]]) -> Iterator[Instruction]:
    """The instructions; a cast comes before the first product that reads it."""
    done: set[str] = set()
    for instruction in plan.instructions:
        name = _multiplied(plan, instruction)
        if name not in casts:
            yield instruction
            continue
        cast, out = casts[name]
        if name not in done:
            done.add(name)
            yield cast
        own = traits_of(instruction).multiplied
        yield replace(instruction, inputs=instruction.inputs | {own: out.name})
