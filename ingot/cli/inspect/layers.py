"""One layer of each kind, from its graph as exported to the groups of the plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ingot.artifact.layer_graphs import LayerGraph, LayerGraphs, Stage
from ingot.artifact.manifest import LedgerEntry
from ingot.artifact.plan import Group, Plan
from ingot.artifact.traits import origin_of
from ingot.cli.inspect.view import kernels_of, layer_of, shape_text


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionView:
    """An instruction: what it makes with the shape, what it reads, and its scalars.

    `inner` says that only its kernel sees the result.
    """

    op: str
    outputs: tuple[tuple[str, str], ...]
    inputs: tuple[str, ...]
    attrs: str
    inner: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """A kernel of a layer, by its number in the step."""

    number: int
    kernel: str
    origin: str
    instructions: tuple[InstructionView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PassView:
    """A pass: how often it matched in the model, and whether it changed the layer."""

    name: str
    tier: str
    matched: int | None
    changed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerView:
    """A layer: `alike` names those of its kind; `stages` are the graphs, as edits."""

    layer: str
    alike: str
    passes: tuple[PassView, ...]
    stages: tuple[Stage, ...]
    groups: tuple[GroupView, ...]


def layer_views(
    graphs: LayerGraphs, ledger: Sequence[LedgerEntry], plan: Plan
) -> tuple[LayerView, ...]:
    """The layers of which an artifact keeps the graphs, beside their groups in a plan."""
    return tuple(
        LayerView(
            layer=graph.layer,
            alike=ranges(graph.alike),
            passes=_passes(graph, ledger),
            stages=graph.stages,
            groups=tuple(
                _group(plan, number, group)
                for number, group in kernels_of(plan, layer_of(graph.layer))
            ),
        )
        for graph in graphs.layers
    )


def ranges(numbers: Sequence[int]) -> str:
    """`0 to 3, 5` for 0, 1, 2, 3 and 5."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]} to {run[-1]}" if run[1:] else str(run[0]) for run in runs)


def _passes(graph: LayerGraph, ledger: Sequence[LedgerEntry]) -> tuple[PassView, ...]:
    changed = {stage.name for stage in graph.stages}
    first = tuple(
        PassView(name=stage.name, tier="", matched=None, changed=True) for stage in graph.stages[:1]
    )
    return first + tuple(
        PassView(
            name=entry.name, tier=entry.tier, matched=entry.matched, changed=entry.name in changed
        )
        for entry in ledger
    )


def _group(plan: Plan, number: int, group: Group) -> GroupView:
    members = plan.members(group)
    return GroupView(
        number=number,
        kernel=group.kernel,
        origin=origin_of(members),
        instructions=tuple(
            InstructionView(
                op=i.op,
                outputs=tuple((n, shape_text(plan.buffer(n))) for n in i.outputs.values()),
                inputs=tuple(i.inputs.values()),
                attrs=" ".join(f"{name}={value}" for name, value in i.attrs.items()),
                inner=any(plan.buffer(n).kind == "inner" for n in i.outputs.values()),
            )
            for i in members
        ),
    )
