"""The groups of a GPU: what is computed on the way while the results of a product are added up."""

from __future__ import annotations

from ingot.targets.grouping import Flow, Found, Rule
from ingot.targets.rules import (
    gates,
    group_heads,
    group_residuals,
    group_soft_caps,
    group_sums,
    head_products,
    with_norm,
)


def group_head_products(flow: Flow, index: int) -> Found | str | None:
    """The product that makes queries, keys and values, with their norms, rotations and writes."""
    return head_products(flow, index, 1)


def group_gates(flow: Flow, index: int) -> Found | str | None:
    """The product of a gated MLP, with the gate of its two halves."""
    return gates(flow, index, 1)


def group_norms(flow: Flow, index: int) -> Found | str | None:
    """A product with its residual, and the norm of their sum."""
    if flow.kernel(index) != "linear_add" or flow.instructions[index].op != "add":
        return None
    return with_norm(flow, index, "linear_add_rms_norm")


RULES: tuple[Rule, ...] = (
    group_heads,
    group_head_products,
    group_gates,
    group_residuals,
    group_norms,
    group_soft_caps,
    group_sums,
)
