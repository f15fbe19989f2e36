"""Grouping: which instructions a target carries out together, as one kernel.

A target lists its rules. Each looks at every instruction in turn and answers: nothing to do here;
these instructions become a kernel; or why they cannot. All answers go into the ledger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from ingot.artifact.manifest import GroupEntry
from ingot.artifact.plan import Group, Plan
from ingot.artifact.traits import written_by
from ingot.errors import InternalError


@dataclass(frozen=True, slots=True)
class Found:
    """Instructions, by number, that one kernel can carry out.

    `stores` are results inside the group that its kernel stores, though nobody else may read them.
    """

    kernel: str
    members: tuple[int, ...]
    stores: tuple[str, ...] = ()


# Of the instruction of that number: what to group, why it cannot be, or None if it is no place for
# this rule.
Rule = Callable[["Flow", int], Found | str | None]


class Flow:
    """The data flow of a plan while its instructions are grouped."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.instructions = plan.instructions
        self._makers: dict[str, int] = {}
        self._readers: dict[str, list[int]] = {}
        self._groups: dict[int, Found] = {}
        for index, instruction in enumerate(plan.instructions):
            for name in dict.fromkeys(plan.root(n).name for n in instruction.inputs.values()):
                self._readers.setdefault(name, []).append(index)
            for name in instruction.outputs.values():
                self._makers[name] = index

    def maker(self, name: str, op: str) -> int | None:
        """The `op` whose result the buffer is, whole and in this shape; None if there is none."""
        index = self._makers.get(name)
        return index if index is not None and self.instructions[index].op == op else None

    def below(self, name: str) -> int | None:
        """Index of the instruction that makes the buffer, or the buffer of which it is a view."""
        return self._makers.get(self.plan.root(name).name)

    def covers(self, names: Sequence[str]) -> bool:
        """Returns whether these views, in this order, are all columns of the first one's buffer."""
        views = [self.plan.buffer(name) for name in names]
        begins = accumulate((view.columns for view in views), initial=0)
        whole = self.plan.root(names[0]).columns
        return [*(view.offset for view in views), whole] == list(begins)

    def readers(self, index: int) -> list[int]:
        """The instructions that read a result of that one."""
        outputs = self.instructions[index].outputs.values()
        return [reader for name in outputs for reader in self._readers.get(name, ())]

    def is_read_only_by(self, index: int, readers: Collection[int]) -> bool:
        """Returns whether nobody but these reads the results, and none of them is the program's."""
        is_result = any(
            self.plan.buffer(name).kind == "output"
            for name in self.instructions[index].outputs.values()
        )
        return not is_result and set(self.readers(index)) <= set(readers)

    def users(self, state: str) -> list[int]:
        """The instructions that read or write a state."""
        return self._readers.get(state, [])

    def kernel(self, index: int) -> str:
        """The kernel that the instruction is in so far."""
        found = self._groups.get(index)
        return self.instructions[index].op if found is None else found.kernel

    def members(self, index: int) -> tuple[int, ...]:
        """The instructions that are in one kernel with that one so far."""
        found = self._groups.get(index)
        return (index,) if found is None else found.members

    def form(self, found: Found) -> str:
        """Makes a group, of groups that there are if need be. Returns the reason if it cannot.

        Kernels hold what passes inside them in float32, and would skip a rounding there.
        """
        inside = {name for index in found.members for name in self._stored(index)}
        members = tuple(sorted({m for index in found.members for m in self.members(index)}))
        found = Found(found.kernel, members, tuple(sorted(inside | set(found.stores))))
        for name in self._inner(found):
            made_last = name in self.instructions[members[-1]].outputs.values()
            if not made_last and self.plan.buffer(name).dtype != "float32":
                return f"a result inside it is rounded to {self.plan.buffer(name).dtype}"
        for index in members:
            self._groups[index] = found
        return ""

    def _stored(self, index: int) -> tuple[str, ...]:
        found = self._groups.get(index)
        return () if found is None else found.stores

    def grouped(self) -> Plan:
        """The plan with its instructions in the order of the kernels, and its groups.

        Results that only their own kernel sees lose their memory.
        """
        order: list[int] = []
        groups = []
        for index in range(len(self.instructions)):
            found = self._groups.get(index)
            if found is None:
                order.append(index)
            elif index == found.members[-1]:
                self._check_place(found)
                groups.append(
                    Group(kernel=found.kernel, first=len(order), count=len(found.members))
                )
                order += found.members
        inner = {name for found in set(self._groups.values()) for name in self._inner(found)}
        return replace(
            self.plan,
            buffers=tuple(
                replace(b, kind="inner") if b.name in inner else b for b in self.plan.buffers
            ),
            instructions=tuple(self.instructions[index] for index in order),
            groups=tuple(groups),
        )

    def _inner(self, found: Found) -> list[str]:
        return [
            name
            for index in found.members
            if self.is_read_only_by(index, found.members)
            for name in self.instructions[index].outputs.values()
            if name not in found.stores
        ]

    def _check_place(self, found: Found) -> None:
        """A group stands where its last member stood: nobody in between may need the others."""
        *earlier, last = found.members
        for member in earlier:
            for index in range(member + 1, last):
                if index not in found.members and self._must_follow(index, member):
                    raise InternalError(
                        f"kernel {found.kernel} would overtake what it feeds: "
                        f"{self.instructions[index].origin}"
                    )

    def _must_follow(self, second: int, first: int) -> bool:
        """Returns whether one instruction writes what the other reads, such as a state."""
        (reads, writes), (before, written) = self._touched(second), self._touched(first)
        return bool(written & reads or before & writes)

    def _touched(self, index: int) -> tuple[set[str], set[str]]:
        """The buffers that an instruction reads, and those that it writes."""
        instruction = self.instructions[index]
        reads = {self.plan.root(name).name for name in instruction.inputs.values()}
        return reads, {*instruction.outputs.values(), *written_by(instruction)}


def group(plan: Plan, rules: Sequence[Rule]) -> tuple[Plan, tuple[GroupEntry, ...]]:
    """The plan, grouped by the rules in their order, and the ledger of what they did."""
    flow = Flow(plan)
    entries = []
    for rule in rules:
        formed, reasons = 0, Counter[str]()
        for index in range(len(plan.instructions)):
            answer = rule(flow, index)
            reason = flow.form(answer) if isinstance(answer, Found) else answer
            if reason:
                reasons[reason] += 1
            formed += reason == ""
        entries.append(
            GroupEntry(
                name=rule.__name__,
                allowed=formed + reasons.total(),
                formed=formed,
                reasons=tuple(sorted(reasons.items())),
            )
        )
    return flow.grouped(), tuple(entries)
