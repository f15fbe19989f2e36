"""Finds the pass that made an instruction and the rule that formed a group, by a second run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch.fx import GraphModule, Node

from ingot.artifact.formats import Storage, storage_in
from ingot.artifact.manifest import Manifest
from ingot.artifact.plan import Instruction, Plan
from ingot.artifact.target import Target
from ingot.artifact.traits import TRAITS, written_by
from ingot.compiler.lower import lower
from ingot.compiler.rounding import fine_products
from ingot.errors import IngotError
from ingot.passes import runner
from ingot.passes.graph import arguments, op_name, program_of
from ingot.passes.pipeline import optional_passes, pipeline
from ingot.targets.target import kind_of

UNKNOWN = ""


@dataclass(slots=True)
class Makers:
    """The passes and rules that made instructions and groups, by the names of their results.

    Attributes:
        passes: the pass that made the node of that name, and those that changed it since.
        rules: the rule that formed the group of a kernel with these results.
        fresh: the instructions that the passes of this ingot make, by the first of their results.
    """

    passes: dict[str, list[str]] = field(default_factory=dict)
    rules: dict[frozenset[str], str] = field(default_factory=dict)
    fresh: dict[str, Instruction] = field(default_factory=dict)

    def of(self, instruction: Instruction, rewriting: str) -> str:
        """The pass that made an instruction, or the target's rewriting, which made the rest."""
        found = (n for out in results(instruction) for n in self.passes.get(out, ()))
        if names := list(dict.fromkeys(found)):
            made, *changed = names
            return made + (f", changed by {', '.join(changed)}" if changed else "")
        return rewriting if self.passes else UNKNOWN

    def rule(self, members: tuple[Instruction, ...]) -> str:
        """The rule that formed a group; empty for an instruction by itself."""
        return self.rules.get(_key(members), UNKNOWN) if len(members) > 1 else UNKNOWN


def results(instruction: Instruction) -> tuple[str, ...]:
    """Identity of an instruction: its results, or what it writes into."""
    return tuple(instruction.outputs.values()) or written_by(instruction)


def makers_of(graph: GraphModule, manifest: Manifest, plan: Plan, target: Target) -> Makers:
    """Runs the passes over the graph of a program, in place, as the artifact was compiled."""
    found = Makers()
    ran = {entry.name for entry in manifest.ledger}
    integers = {
        source: storage_in(b.format)
        for b in plan.of_kind("weight")
        if b.format.is_scaled
        for source in b.sources
    }
    before = _texts(graph)
    for each in pipeline(
        program_of(graph),
        dtype=manifest.numerics.dtype,
        disable=[name for name in optional_passes() if name not in ran],
        integers=integers.keys(),
        kept=integers,
    ):
        runner.apply(graph, each)
        after = _texts(graph)
        for name, text in after.items():
            if before.get(name) != text:
                target_changed = name not in before or before[name][0] != text[0]
                past = [] if target_changed else found.passes.get(name, [])
                found.passes[name] = [*past, each.name]
        before = after
    found.passes |= _renamed(graph, plan, found.passes)
    _lowered(found, graph, plan, integers, target)
    return found


def _texts(graph: GraphModule) -> dict[str, tuple[str, str]]:
    """Maps each node's name to what it calls and to its arguments that are no nodes."""
    return {
        node.name: (str(node.target), repr([a for a in node.args if not isinstance(a, Node)]))
        for node in graph.graph.nodes
        if node.op == "call_function"
    }


def _renamed(
    graph: GraphModule, plan: Plan, passes: Mapping[str, list[str]]
) -> dict[str, list[str]]:
    """By the names that a plan has for what a graph calls otherwise: its result, and what is only
    written into a state."""
    (result,) = graph.graph.output_node().all_input_nodes
    (output,) = plan.spec.outputs
    found = {output.name: list(passes.get(result.name, []))}
    for node in graph.graph.nodes:
        for argument in TRAITS[op].mutates if (op := op_name(node)) else ():
            if (state := arguments(node)[argument]) is not None:
                found[state.name] = list(passes.get(node.name, []))
    return found


def _lowered(
    found: Makers,
    graph: GraphModule,
    plan: Plan,
    integers: Mapping[str, Storage],
    target: Target,
) -> None:
    """Lowers and groups anew, for the rules and the fresh instructions; leaves them out where that
    is not possible."""
    kind = kind_of(target)
    try:
        int8 = any(state.format.is_scaled for state in plan.spec.states)
        fresh = lower(graph, plan.limits, integers, int8_states=int8)
        rewritten = kind.rewrite(fresh, fine_products(plan))
        for number in range(len(kind.rules)):
            grouped, _ = kind.group(rewritten, kind.rules[number + 1 :])
            for group in grouped.kernels:
                if group.count > 1:
                    found.rules.setdefault(_key(grouped.members(group)), kind.rules[number])
    except IngotError:
        return
    found.fresh = {results(i)[0]: i for i in rewritten.instructions}


def _key(members: tuple[Instruction, ...]) -> frozenset[str]:
    return frozenset(name for i in members for name in results(i))
