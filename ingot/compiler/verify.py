"""Checks plans: against the graphs that they were lowered from, and against one another.

All run by the references on the same random weights, so that the values are those of no model; what
is compared is what the compiler did. Where weights are stored in integers, all have the numbers
that these stand for. See `ingot.passes.verification` for graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.fx import GraphModule

from ingot.artifact.plan import Limits, Plan
from ingot.compiler.interpret import new_states, plan_logits, plan_weights
from ingot.compiler.quantization.search import quantize_rows
from ingot.compiler.rounding import Rounded, Roundings, SideBySide, roundings_of
from ingot.errors import PassError
from ingot.ops import OPS
from ingot.ops.scaled import Operand
from ingot.ops.stacks import stack_of
from ingot.ops.steps import paged_step
from ingot.passes.graph import op_name, op_nodes, program_of
from ingot.passes.verification import (
    LENGTHS,
    ROWS,
    DrawnWeights,
    Routers,
    graph_logits,
    random_tokens,
    relative_error,
)
from ingot.targets.target import TargetKind

ROUTE = OPS["route"]
# Relative errors of the logits: sums in another order, and the most that roundings may cost.
REGROUPED = 1e-5
MOST = 5e-2
# Of mixers with records: layers normalise what heads read, however little it is, and each turns it
# more.
MOST_OF_RECORDS = 3e-1
# As a multiple of the error that the roundings of a plan make by themselves; half of three, so that
# no other error of three times that passes.
OF_NOISE = 1.5


class PlanChecker:
    """Runs plans of one model; `reference` is its graph as it was exported."""

    def __init__(self, reference: GraphModule) -> None:
        self.reference = reference
        keeps = any(OPS[op_name(node)].record for node, _ in op_nodes(reference))
        self.most = MOST_OF_RECORDS if keeps else MOST
        self.random = DrawnWeights(reference)
        self.weights = plan_weights(self.random.read)
        self.tokens = random_tokens(reference)[0]

    def check_lowered(self, gm: GraphModule, plan: Plan) -> None:
        """Compares a plan with the final graph, which differs by the rounding of the cache, and
        with the exported graph, which rounds nothing. Raises PassError."""
        stored = RandomStored(self.random, plan)
        after = roundings_of(plan)
        before = replace(after, cache=after.queries)
        (exact, uncached, rounded), routed = self.rounded(stored, [before, after], LENGTHS, ROWS)
        got = self.logits(plan, LENGTHS, ROWS, routed)
        graph = graph_logits(gm, stored.dense, Routers(routed, MOST, ROWS))
        self._compare("lower", got, graph, allowed(rounded, uncached, self.most))
        self._compare("lower", got, exact, allowed(rounded, exact, self.most))

    def check_target(self, kind: TargetKind, plan: Plan, rewritten: Plan, placed: Plan) -> None:
        """Compares what a target made of a plan: rewritten, then grouped and placed.

        Raises PassError.
        """
        step = step_within(plan.limits)
        name, stored = f"rewriting for {kind.name}", RandomStored(self.random, plan)
        ways = [roundings_of(plan), roundings_of(rewritten)]
        (_, before, after), routed = self.rounded(stored, ways, *step)
        got, reference = (self.logits(each, *step, routed) for each in (rewritten, plan))
        self._compare(name, got, reference, allowed(after, before, self.most))
        # No bit may differ, whatever is picked.
        alone = self.logits(rewritten, *step) if routed else got
        self._compare(f"grouping for {kind.name}", self.logits(placed, *step), alone, 0.0)

    def rounded(
        self,
        stored: RandomStored,
        ways: Sequence[Roundings],
        lengths: Sequence[int],
        rows: Sequence[int],
    ) -> tuple[list[Tensor], list[Tensor]]:
        """The same logits of the exported graph: exact, then with each of these roundings. And what
        its routers are given in the exact run."""
        tokens = self.tokens[: sum(lengths)]
        prompts = [part.tolist() for part in tokens.split(list(lengths))]
        rounded = [Rounded(way, stored.read) for way in ways]
        runs = SideBySide(self.reference, stored.read, prompts, rounded, MOST)
        found = [logits[0, list(rows)] for logits in runs.run()]
        return found, runs.given

    def logits(
        self,
        plan: Plan,
        lengths: Sequence[int],
        rows: Sequence[int],
        routed: Sequence[Tensor] = (),
    ) -> Tensor:
        """Logits of some rows of a step of sequences of these lengths; `routed` is what the routers
        of the exact run are given."""
        rng = torch.Generator().manual_seed(2)
        inputs, num_pages = paged_step(rng, [(n, n) for n in lengths], plan.limits.page_size)
        inputs |= {"tokens": self.tokens[: sum(lengths)].int()}
        if wanted := program_of(self.reference).rows:
            inputs[wanted.name] = torch.tensor(rows)
        states = new_states(plan, num_pages)
        references = {ROUTE.name: Routers(routed, MOST, rows).reference}
        return plan_logits(plan, self.weights, inputs, states, references).float()

    @staticmethod
    def _compare(name: str, got: Tensor, reference: Tensor, most: float) -> None:
        error = relative_error(got, reference)
        if not error <= most:
            limit = f"at most {most:.0e}" if most else "not by one bit"
            found = f"moved the logits by {error:.1e} (relative)"
            raise PassError(name, found, hint=f"Allowed: {limit}.")


class RandomStored:
    """Random parameters as a plan stores them, by name."""

    def __init__(self, random: DrawnWeights, plan: Plan) -> None:
        self.random = random
        self.formats = {
            name: buffer.format
            for buffer in plan.of_kind("weight")
            if buffer.format.is_scaled
            for name in buffer.sources or (buffer.name,)
        }

    def read(self, name: str) -> Operand:
        """In integers where they are stored so."""
        whole = self.random.read(name)
        form = self.formats.get(name) or self.formats.get(stack_of(name)[0])
        return quantize_rows(whole, form) if form else whole

    def dense(self, name: str) -> Tensor:
        """The numbers that these stand for."""
        whole = self.read(name)
        return whole if isinstance(whole, Tensor) else whole.dequantize()


def allowed(rounded: Tensor, reference: Tensor, most: float = MOST) -> float:
    """The relative error that is allowed where roundings by themselves make that difference."""
    noise = relative_error(rounded, reference)
    return min(most, REGROUPED + OF_NOISE * noise)


def step_within(limits: Limits) -> tuple[list[int], list[int]]:
    """The usual lengths and rows of a step, or what a plan of these limits has room for."""
    lengths: list[int] = []
    for length in LENGTHS[: limits.max_num_seqs]:
        room = limits.max_num_batched_tokens - sum(lengths)
        lengths.append(min(length, room, limits.max_model_len))
    rows = [row for row in ROWS if row < sum(lengths)]
    return [n for n in lengths if n], rows[: limits.max_logit_rows]
