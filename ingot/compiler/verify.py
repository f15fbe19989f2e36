"""Checks plans: one against the graph that it was lowered from, others against one another.

All run by the references on the same random weights, so that the values are those of no model; what
is compared is what the compiler did. See `ingot.passes.verification` for graphs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.fx import GraphModule

from ingot.artifact.plan import Limits, Plan
from ingot.compiler.interpret import new_states, plan_logits, plan_weights
from ingot.errors import PassError
from ingot.ops.steps import paged_step
from ingot.passes.verification import LENGTHS, ROWS, Checker, Weights, random_tokens, relative_error
from ingot.targets.target import TargetKind

# Relative errors of the logits: sums in another order, and roundings to so many bits. Random
# weights are the hardest to round.
REGROUPED = 1e-5
ROUNDED = {8: 5e-2, 4: 4e-1}


class PlanChecker:
    """Runs plans of one model; `reference` is its graph as it was exported."""

    def __init__(self, reference: GraphModule) -> None:
        self.weights = plan_weights(Weights(reference).read)
        self.tokens = random_tokens(reference)[0]

    def check_lowered(self, gm: GraphModule, plan: Plan) -> None:
        """Compares a plan with the final graph. Raises PassError."""
        got = self.logits(plan, LENGTHS, ROWS)
        self._compare("lower", got, Checker(gm).logits, tolerance(plan))

    def check_target(self, kind: TargetKind, plan: Plan, rewritten: Plan, placed: Plan) -> None:
        """Compares what a target made of a plan: rewritten, then grouped and placed.

        Raises PassError.
        """
        step = step_within(plan.limits)
        logits = self.logits(rewritten, *step)
        name = f"rewriting for {kind.name}"
        self._compare(name, logits, self.logits(plan, *step), tolerance(rewritten))
        self._compare(f"grouping for {kind.name}", self.logits(placed, *step), logits, 0.0)

    def logits(self, plan: Plan, lengths: Sequence[int], rows: Sequence[int]) -> Tensor:
        """Logits of some rows of a step of sequences of these lengths."""
        rng = torch.Generator().manual_seed(2)
        inputs, num_pages = paged_step(rng, [(n, n) for n in lengths], plan.limits.page_size)
        inputs |= {"tokens": self.tokens[: sum(lengths)].int(), "logit_rows": torch.tensor(rows)}
        return plan_logits(plan, self.weights, inputs, new_states(plan, num_pages)).float()

    @staticmethod
    def _compare(name: str, got: Tensor, reference: Tensor, allowed: float) -> None:
        error = relative_error(got, reference)
        if not error <= allowed:
            limit = f"at most {allowed:.0e}" if allowed else "not by one bit"
            found = f"moved the logits by {error:.1e} (relative)"
            raise PassError(name, found, hint=f"Allowed: {limit}.")


def step_within(limits: Limits) -> tuple[list[int], list[int]]:
    """The usual lengths and rows of a step, or what a plan of these limits has room for."""
    lengths: list[int] = []
    for length in LENGTHS[: limits.max_num_seqs]:
        room = limits.max_num_batched_tokens - sum(lengths)
        lengths.append(min(length, room, limits.max_model_len))
    rows = [row for row in ROWS if row < sum(lengths)]
    return [n for n in lengths if n], rows[: limits.max_logit_rows]


def tolerance(plan: Plan) -> float:
    """What the formats of a plan's buffers explain."""
    scaled = [b.format.bits for b in plan.by_name.values() if b.format.is_scaled]
    return ROUNDED[min(scaled)] if scaled else REGROUPED
