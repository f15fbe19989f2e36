"""Weights that several programs of an artifact read: each lies in the file once, in one layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ingot.artifact.plan import Plan
from ingot.artifact.traits import traits_of


def share_weights(plans: Mapping[str, Plan]) -> dict[str, Plan]:
    """The programs of a target, each told which of its weights products of others read."""
    matrices = {name: matrices_of(plan) for name, plan in plans.items()}
    multiplied = set().union(*matrices.values())
    return {
        name: replace(
            plan,
            multiplied=tuple(
                weight.name
                for weight in plan.of_kind("weight")
                if weight.name in multiplied - matrices[name]
            ),
        )
        for name, plan in plans.items()
    }


def matrices_of(plan: Plan) -> frozenset[str]:
    """The weights that rows are multiplied with, in this program or in others."""
    products = ((i, traits_of(i).matrix) for i in plan.instructions)
    return frozenset((*plan.multiplied, *(i.inputs[name] for i, name in products if name)))


def with_all_weights(plans: Sequence[Plan]) -> Plan:
    """The first of some programs, with the weights of the others as well: what a packer reads."""
    first, *others = plans
    known, more = {buffer.name for buffer in first.buffers}, []
    for plan in others:
        new = [weight for weight in plan.of_kind("weight") if weight.name not in known]
        known |= {weight.name for weight in new}
        more += new
    multiplied = {name for plan in others for name in matrices_of(plan)} - matrices_of(first)
    return replace(
        first,
        buffers=(*first.buffers, *more),
        multiplied=(*first.multiplied, *sorted(multiplied - {*first.multiplied})),
    )
