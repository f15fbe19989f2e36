"""What plans of models may say, and what a GPU has kernels for."""

from __future__ import annotations

from ingot.artifact.traits import TRAITS
from ingot.targets.cuda.generate import EMITTERS

IN_GRAPHS = {"attention", "experts"}  # a plan has others in their place


def test_every_op_of_a_plan_has_a_kernel() -> None:
    assert set(TRAITS) - set(EMITTERS) == IN_GRAPHS
