"""The kernels of a plan with their instructions: what each reads and writes, in what rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ingot.artifact.plan import Buffer, Group, Instruction, Plan
from ingot.artifact.spec import Dim
from ingot.artifact.traits import origin_of, traits_of, written_by


@dataclass(frozen=True)
class Work:
    """A kernel with its instructions."""

    plan: Plan
    group: Group

    @cached_property
    def members(self) -> tuple[Instruction, ...]:
        return self.plan.members(self.group)

    @property
    def kernel(self) -> str:
        return self.group.kernel

    @property
    def origin(self) -> str:
        """The module of the model that it comes from."""
        return origin_of(self.members)

    def member(self, op: str) -> Instruction:
        """Its one instruction of that op."""
        (found,) = (i for i in self.members if i.op == op)
        return found

    def has(self, op: str) -> bool:
        return any(i.op == op for i in self.members)

    @cached_property
    def writes(self) -> tuple[str, ...]:
        """The buffers that it fills."""
        results = (name for i in self.members for name in i.outputs.values())
        return tuple(name for name in results if self.plan.buffer(name).kind != "inner")

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """The buffers that it takes from outside, weights and states included."""
        made = {name for i in self.members for name in i.outputs.values()}
        names = dict.fromkeys(name for i in self.members for name in i.inputs.values())
        return tuple(name for name in names if self.plan.root(name).name not in made)

    @property
    def mutated(self) -> frozenset[str]:
        """The states that it writes into."""
        return frozenset(name for i in self.members for name in written_by(i))

    @property
    def rows(self) -> Dim:
        """Number of rows that it works on."""
        names = (*self.writes, *self.reads)
        return self.plan.buffer(names[0]).shape[0]

    @property
    def attends(self) -> bool:
        """True if rows of its results depend on what other tokens have stored."""
        return any(traits_of(i).meets_tokens for i in self.members)

    @property
    def is_product(self) -> bool:
        return any(traits_of(i).matrix for i in self.members)


def memory_of(plan: Plan, name: str) -> Buffer | None:
    """The temporary that a buffer lies in; None if it lies outside the arena."""
    root = plan.root(name)
    return root if root.kind == "arena" else None


def where(instruction: Instruction) -> str:
    """Place of an instruction, for messages."""
    return f"operation {instruction.op} at {instruction.origin or 'the top of the model'}"
