"""The launches of mixtures of experts: their routers, and their two products."""

from __future__ import annotations

from collections.abc import Mapping

from ingot.artifact.launches import Constant
from ingot.artifact.plan import Instruction
from ingot.errors import CodegenError
from ingot.targets.cuda.call import Call, Choice, Emit
from ingot.targets.cuda.calls_rows import ACTIVATIONS
from ingot.targets.cuda.operands import Operands
from ingot.targets.cuda.products import Constants, passed, power_of_two, row_grid, row_warps
from ingot.targets.cuda.stacks import ExpertStack
from ingot.targets.work import Work, where

CLAMPED = "clamped"
SCORINGS = ("softmax", "sigmoid")
GROUP_SCORES = ("max", "top2")


def route(operands: Operands, work: Work) -> list[Call]:
    i = work.member("route")
    logits, shares = operands.rows(i, "logits"), operands.rows(i, "out")
    attrs, bias = i.attrs, operands.weight(i, "bias")
    groups, kept, picks = (int(attrs[name]) for name in ("groups", "kept_groups", "top_k"))
    size = logits.columns // groups
    _expect(i, attrs["scoring"] in SCORINGS, f"scores by {attrs['scoring']!r}")
    _expect(i, attrs["group_score"] in GROUP_SCORES, f"scores groups by {attrs['group_score']!r}")
    even = logits.columns == size * groups and 0 < picks <= kept * size
    _expect(i, even, f"picks {picks} of {logits.columns} experts, in {kept} of {groups} groups")
    arguments, absent = passed(
        ("logits", "bias", "shares"),
        {"logits": logits.pointer, "bias": bias, "shares": shares.pointer},
    )
    blocks = power_of_two(groups), power_of_two(size)
    constants: dict[str, Constant] = {
        **absent, "LOGITS_STRIDE": logits.stride, "SHARES_STRIDE": shares.stride,
        "GROUPS": groups, "SIZE": size, "PICKS": picks, "KEPT_GROUPS": kept,
        "TOP2": attrs["group_score"] == "top2" and size > 1,
        "SIGMOID": attrs["scoring"] == "sigmoid", "NORMALISE": bool(attrs["normalise"]),
        "EPS": float(attrs["eps"]), "SCALE": float(attrs["scale"]), "WITH_BIAS": bias is not None,
        "BLOCK_GROUPS": blocks[0], "BLOCK_SIZE": blocks[1],
    }  # fmt: skip
    warps = row_warps(blocks[0] * blocks[1])
    choice = Choice("route.route", constants, row_grid(logits.symbol), num_warps=warps)
    return [Call(arguments, (choice,))]


def expert_gate(operands: Operands, work: Work) -> list[Call]:
    """The first product of experts, and its gates."""
    i = work.member("expert_gate")
    kind, stack, out = str(i.attrs["kind"]), ExpertStack(operands, i), operands.rows(i, "out")
    _expect(i, kind in (*ACTIVATIONS, CLAMPED), f"has the gate {kind!r}")
    _expect(i, stack.outputs % 2 == 0, f"has matrices of {stack.outputs} rows, without halves")
    own: Constants = {
        "HALF": stack.outputs // 2, "KIND": kind, "LIMIT": float(i.attrs["limit"]),
    }  # fmt: skip
    together = [*stack.lists(out), stack.gated(own, out)]
    return together if stack.splits.count == 1 else [*stack.gated_in_parts(own, out), *together]


def expert_sum(operands: Operands, work: Work) -> list[Call]:
    """The second product of experts, and the sum of what they make of a row."""
    i = work.member("expert_sum")
    stack, out = ExpertStack(operands, i), operands.rows(i, "out")
    return [*stack.lists(), *stack.added(out)]


def _expect(i: Instruction, condition: bool, found: str) -> None:
    if not condition:
        raise CodegenError(
            f"{where(i)} {found}",
            hint=f"Known: scores {', '.join(SCORINGS)}; of groups {', '.join(GROUP_SCORES)}; "
            f"gates {', '.join((*ACTIVATIONS, CLAMPED))}.",
        )


CALLS: Mapping[str, Emit] = {
    "expert_gate": expert_gate,
    "expert_sum": expert_sum,
    "route": route,
}
