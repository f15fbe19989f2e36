"""The least that the kernels of a plan, and a whole step, must read from memory and compute."""

from __future__ import annotations

from ingot.artifact.cost import Cost, StepShape, total
from ingot.artifact.plan import Instruction, Plan
from ingot.artifact.traits import traits_of


def step_cost(plan: Plan, shape: StepShape) -> Cost:
    """The cost of a whole step."""
    return total(kernel_costs(plan, shape))


def kernel_costs(plan: Plan, shape: StepShape) -> list[Cost]:
    """The cost of each kernel of a step."""
    return [
        total(_cost(plan, instruction, shape) for instruction in plan.members(kernel))
        for kernel in plan.kernels
    ]


def _cost(plan: Plan, instruction: Instruction, shape: StepShape) -> Cost:
    operands = {argument: plan.buffer(name) for argument, name in instruction.inputs.items()}
    return traits_of(instruction).cost(instruction, operands, shape)
