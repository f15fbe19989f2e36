"""A plan as a graph for Graphviz: instructions as boxes, and a frame around each group.

Source: the DOT language, graphviz.org/doc/info/lang.html.
"""

from __future__ import annotations

from collections.abc import Iterator

from ingot.artifact.plan import Group, Instruction, Plan
from ingot.artifact.traits import Role, traits_of, written_by
from ingot.cli.inspect.view import kernels_of, shape_text

STYLE = (
    'graph [fontname="Helvetica", fontsize=11, style="rounded", color="#b4531c"];',
    'node [fontname="Helvetica", fontsize=11, shape=box, style="rounded,filled", '
    'color="#76716a", fillcolor="#fbfaf8"];',
    'edge [fontname="Helvetica", fontsize=9, color="#76716a"];',
)


def plan_dot(plan: Plan, name: str, layer: int | None = None) -> str:
    """The kernels of a layer, or all of a plan. What comes from elsewhere is an ellipse."""
    kernels = kernels_of(plan, layer)
    lines = [f"digraph {quoted(name)} {{", *(f"  {line}" for line in STYLE)]
    for number, group in kernels:
        lines += (f"  {line}" for line in _kernel(plan, number, group))
    lines += (f"  {line}" for line in _edges(plan, [group for _, group in kernels]))
    return "\n".join([*lines, "}\n"])


def quoted(text: str) -> str:
    """A text as DOT writes it; a line of its own follows each line break."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _kernel(plan: Plan, number: int, group: Group) -> list[str]:
    """The boxes of a kernel, in a frame if there are several."""
    indices = range(group.first, group.first + group.count)
    boxes = [f"i{i} [label={quoted(_label(plan, plan.instructions[i]))}];" for i in indices]
    if group.count == 1:
        return boxes
    title = f"label={quoted(f'{number} {group.kernel}')};"
    return [f"subgraph cluster_{number} {{", f"  {title}", *(f"  {box}" for box in boxes), "}"]


def _label(plan: Plan, instruction: Instruction) -> str:
    """Its primitive, the module that it comes from, and its weights."""
    weights = (n for n in instruction.inputs.values() if plan.buffer(n).kind == "weight")
    shapes = (shape_text(plan.buffer(name)) for name in weights)
    return "\n".join((instruction.op, instruction.origin, *shapes))


def _edges(plan: Plan, groups: list[Group]) -> Iterator[str]:
    """Draws edges from where a value is made to where it is read; writing a state makes it."""
    inside = {i for group in groups for i in range(group.first, group.first + group.count)}
    makers: dict[str, int] = {}
    outside: dict[str, str] = {}
    for index, instruction in enumerate(plan.instructions):
        if index in inside:
            for name in dict.fromkeys(_read(plan, instruction)):
                buffer = plan.root(name)
                maker = makers.get(buffer.name)
                start = f"i{maker}"
                if maker is None or maker not in inside:
                    start = outside.setdefault(buffer.name, f"o{len(outside)}")
                label = quoted(f"{name}\n{shape_text(plan.buffer(name))}")
                yield f"{start} -> i{index} [label={label}];"
        makers |= {plan.root(name).name: index for name in _written(instruction)}
    for name, node in outside.items():
        yield f"{node} [label={quoted(name)}, shape=ellipse, style=dashed];"


def _read(plan: Plan, instruction: Instruction) -> Iterator[str]:
    """Yields what it reads, without weights and without what it only writes into."""
    writes = traits_of(instruction).arguments(Role.WRITTEN)
    for argument, name in instruction.inputs.items():
        if argument not in writes and plan.buffer(name).kind != "weight":
            yield name


def _written(instruction: Instruction) -> Iterator[str]:
    """Yields what it makes, and the states that it writes into."""
    yield from instruction.outputs.values()
    yield from written_by(instruction)
