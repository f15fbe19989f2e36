"""The kernels of a plan as a CPU's threads see them: what each reads and writes, in what rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from ingot.artifact.plan import Buffer, Group, Instruction, Plan
from ingot.artifact.step import Dim
from ingot.artifact.traits import Role, origin_of, traits_of

# Ops that work row by row, but whose kernel deals heads.
BY_HEADS = ("rope",)


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
        return frozenset(i.inputs[name] for i in self.members for name in traits_of(i).mutates)

    @property
    def rows(self) -> Dim:
        """How many rows it works on."""
        names = (*self.writes, *self.reads)
        return self.plan.buffer(names[0]).shape[0]

    @property
    def attends(self) -> bool:
        """Whether rows of its results depend on what other tokens have stored."""
        return any(traits_of(i).meets_tokens for i in self.members)

    @property
    def is_product(self) -> bool:
        return any(traits_of(i).matrix for i in self.members)

    @property
    def is_row_wise(self) -> bool:
        """Whether threads can run it over any rows of their own, one by one.

        Threads need not wait between several of these in a row. Over few rows every thread can run
        them by itself.
        """
        by_heads = any(i.op in BY_HEADS for i in self.members)
        return not (by_heads or self.attends or self.is_product or self.mutated)

    @property
    def chosen(self) -> frozenset[str]:
        """The buffers of which it reads other rows than those it computes."""
        return frozenset(
            i.inputs[name] for i in self.members for name in traits_of(i).arguments(Role.CHOSEN)
        )

    @cached_property
    def dealt_by_heads(self) -> tuple[str, ...]:
        """The buffers that it divides by KV heads."""
        states = [n for n in self.reads if self.plan.buffer(n).kind == "state"]
        if self.attends:
            return (self.member("paged_attention").inputs["q"], *self.writes, *states)
        return (*self.writes, *states) if self.has("rope") and self.mutated else ()

    @property
    def kv_heads(self) -> int:
        states = (b for n in self.reads if (b := self.plan.buffer(n)).kind == "state")
        return int(next(states).shape[1])


def work_of(plan: Plan) -> tuple[Work, ...]:
    """The kernels of a plan, in order."""
    return tuple(Work(plan, group) for group in plan.kernels)


def lasting_reads(work: Sequence[Work]) -> Iterator[tuple[str, ...]]:
    """For each kernel, the buffers whose contents must last until it is done.

    These are the buffers that it reads itself, and those that kernels before it read without a wait
    in between: a slower thread may still be there. In a step of many rows threads wait at attention
    alone, so reads last from one attention to the next. docs/cpu.md has an example.
    """
    before: tuple[str, ...] = ()
    for kernel in work:
        yield (*before, *kernel.reads)
        before = () if kernel.attends else (*before, *kernel.reads)


def memory_of(plan: Plan, name: str) -> Buffer | None:
    """The temporary that a buffer lies in; None if it lies outside the arena."""
    root = plan.root(name)
    return root if root.kind == "arena" else None
