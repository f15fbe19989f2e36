"""Places temporaries in the arena: those that do not live at the same time share memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ingot.artifact.plan import MemoryPlan, Plan, Slot, aligned

Uses = Sequence[tuple[Sequence[str], Sequence[str]]]


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A temporary of `nbytes` bytes that lives from one kernel to another, inclusive."""

    name: str
    nbytes: int
    first_use: int
    last_use: int

    def overlaps(self, other: Lifetime | Slot) -> bool:
        return self.first_use <= other.last_use and other.first_use <= self.last_use


def placed(plan: Plan, uses: Uses) -> Plan:
    """The plan with every temporary in the arena; `uses`: what each kernel (reads, writes).

    A kernel names any buffers. A temporary lives as long as a view of it is used.
    """
    nbytes = {b.name: plan.arena_bytes_of(b) for b in plan.of_kind("arena")}
    rooted = [(_roots(plan, reads), _roots(plan, writes)) for reads, writes in uses]
    memory = plan_memory(lifetimes(rooted, nbytes))
    offsets = {slot.name: slot.offset for slot in memory.slots}
    buffers = tuple(replace(b, offset=offsets.get(b.name, b.offset)) for b in plan.buffers)
    return replace(plan, buffers=buffers, memory=memory)


def _roots(plan: Plan, names: Sequence[str]) -> list[str]:
    return [plan.root(name).name for name in names]


def lifetimes(uses: Uses, nbytes: Mapping[str, int]) -> tuple[Lifetime, ...]:
    """Lifetimes of the temporaries in `nbytes`, from each kernel's (reads, writes)."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for index, (reads, writes) in enumerate(uses):
        for name in (*reads, *writes):
            if name in nbytes:
                first.setdefault(name, index)
                last[name] = index
    return tuple(Lifetime(name, nbytes[name], first[name], last[name]) for name in first)


def plan_memory(items: Sequence[Lifetime]) -> MemoryPlan:
    """Gives every temporary, largest first, the lowest offset where it overlaps no other.

    Greedy by size, as in Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net
    Inference" (2020).
    """
    placed: list[Slot] = []
    for item in sorted(items, key=lambda i: (-i.nbytes, i.first_use, i.name)):
        offset = _lowest_gap(item, placed)
        placed.append(
            Slot(
                name=item.name,
                offset=offset,
                nbytes=item.nbytes,
                first_use=item.first_use,
                last_use=item.last_use,
            )
        )
    end = max((slot.offset + slot.nbytes for slot in placed), default=0)
    order = {item.name: index for index, item in enumerate(items)}
    return MemoryPlan(
        arena_bytes=aligned(end), slots=tuple(sorted(placed, key=lambda s: order[s.name]))
    )


def _lowest_gap(item: Lifetime, placed: Sequence[Slot]) -> int:
    offset = 0
    for slot in sorted((s for s in placed if item.overlaps(s)), key=lambda s: s.offset):
        if offset + item.nbytes <= slot.offset:
            break
        offset = max(offset, aligned(slot.offset + slot.nbytes))
    return offset
