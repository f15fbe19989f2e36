"""Layout of stacks of matrices in the file of weights: those of one module share a tensor.

What belongs to one index lies together, so that an expert is read in one piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ingot.artifact.plan import Plan
from ingot.artifact.tensors import holder_of


def modules_of(stacks: Iterable[str]) -> dict[str, list[str]]:
    """The names of stacks by the tensor that holds them."""
    found: dict[str, list[str]] = {}
    for name in stacks:
        found.setdefault(holder_of(name), []).append(name)
    return found


def with_stacks(plan: Plan, matrix_bytes: Mapping[str, int]) -> Plan:
    """The plan with the place of every stack in its tensor.

    `matrix_bytes` are those of a matrix of each stack, with what fills them up.
    """
    places = {}
    for holder, stacks in modules_of(matrix_bytes).items():
        sizes = [matrix_bytes[stack] for stack in stacks]
        for index, stack in enumerate(stacks):
            places[stack] = (holder, sum(sizes[:index]), sum(sizes))
    return replace(
        plan,
        buffers=tuple(
            replace(buffer, base=place[0], offset=place[1], row_stride=place[2])
            if (place := places.get(buffer.name))
            else buffer
            for buffer in plan.buffers
        ),
    )
