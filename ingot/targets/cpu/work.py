"""The kernels of a plan as a CPU's threads see them: what each reads and writes, in what rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from ingot.artifact.plan import Plan
from ingot.artifact.traits import Role, traits_of
from ingot.targets.cpu.kernel_table import kernel_named
from ingot.targets.work import Work


@dataclass(frozen=True)
class CpuWork(Work):
    """A kernel with its instructions."""

    @property
    def is_row_wise(self) -> bool:
        """True if threads can run it over any rows of their own, one by one.

        Threads need not wait between several of these in a row. Over few rows every thread can run
        them by itself.
        """
        return not (self._deals_heads or self.attends or self.is_product or self.mutated)

    @property
    def _deals_heads(self) -> bool:
        return kernel_named(self.kernel).deals_heads

    @property
    def is_norm(self) -> bool:
        return kernel_named(self.kernel).is_norm

    @property
    def is_stacked(self) -> bool:
        """True if rows choose the matrices that they are multiplied with.

        All threads then share all rows, in a step of any size: an expert has few rows as it is.
        """
        return any(traits_of(i).stacked for i in self.members)

    @property
    def chosen(self) -> frozenset[str]:
        """The buffers of which it reads other rows than those it computes."""
        return frozenset(
            i.inputs[name] for i in self.members for name in traits_of(i).arguments(Role.CHOSEN)
        )

    @property
    def shares_sums(self) -> bool:
        """True if its threads may hand one another what they have summed up."""
        return any(traits_of(i).attends for i in self.members)

    @cached_property
    def dealt_by_heads(self) -> tuple[str, ...]:
        """The buffers that it divides by KV heads."""
        states = [n for n in self.reads if self.plan.buffer(n).kind == "state"]
        attends = next((i for i in self.members if traits_of(i).attends), None)
        if attends and states:
            queries = (attends.inputs[name] for name in traits_of(attends).arguments(Role.OWN))
            return (*queries, *self.writes, *states)
        return (*self.writes, *states) if self._deals_heads and self.mutated else ()

    @property
    def kv_heads(self) -> int:
        states = (b for n in self.reads if (b := self.plan.buffer(n)).kind == "state")
        return int(next(states).shape[1])


def work_of(plan: Plan) -> tuple[CpuWork, ...]:
    """The kernels of a plan, in order."""
    return tuple(CpuWork(plan, group) for group in plan.kernels)


def lasting_reads(work: Sequence[CpuWork]) -> Iterator[tuple[str, ...]]:
    """For each kernel, the buffers whose contents must last until it is done.

    These are the buffers that it reads itself, and those that kernels before it read without a wait
    in between: a slower thread may still be there. In a step of many rows threads wait at attention
    alone, so reads last from one attention to the next. docs/cpu.md has an example.
    """
    before: tuple[str, ...] = ()
    for kernel in work:
        yield (*before, *kernel.reads)
        before = () if kernel.attends else (*before, *kernel.reads)
