"""Barriers between the threads of a step, from the plan's data flow; see docs/cpu.md.

Two kernels need a barrier between them if one writes memory that the other reads or writes. They do
not if both deal the rows of that buffer to threads in the same way, because then every thread reads
only what it wrote itself. Temporaries that share arena bytes are the same memory.

How kernels deal rows depends on how many rows a step has; see sizes.py.

The kernel that writes keys and the one that attends deal KV heads alike, each with its query heads,
if the number of threads divides the number of KV heads. Then a thread attends to what it wrote,
except in steps of many rows. If it does not, threads may attend to a KV head together, and hand one
another what they have summed up, in memory that the next attention uses, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ingot.artifact.spec import Dim
from ingot.targets.cpu.operands import Operands
from ingot.targets.cpu.sizes import SIZES, Size, sizes_with_own_rows
from ingot.targets.cpu.work import CpuWork

Division = tuple[str, Dim]  # a buffer, and the rows or heads that are dealt
OWN: Division = ("", 1)  # every thread has memory of its own
HEADS: Division = ("", "heads")  # every thread has heads of its own


@dataclass(frozen=True, slots=True)
class Barrier:
    """Step sizes with a barrier, where KV heads divide evenly among threads and where not."""

    even: frozenset[Size] = frozenset()
    uneven: frozenset[Size] = frozenset()


@dataclass(frozen=True, slots=True)
class Access:
    """Memory that a kernel touches: bytes of one place, and how threads divide it."""

    place: str
    begin: int
    end: int
    division: Division | None
    writes: bool

    def conflicts(self, other: Access) -> bool:
        meet = self.place == other.place and self.begin < other.end and other.begin < self.end
        shared = self.division is None or self.division != other.division
        return meet and shared and (self.writes or other.writes)


def barriers(operands: Operands) -> tuple[Barrier, ...]:
    """The barrier in front of each kernel."""
    return tuple(map(Barrier, _waiting(operands, even=True), _waiting(operands, even=False)))


def _waiting(operands: Operands, *, even: bool) -> list[frozenset[Size]]:
    """For each kernel, the steps in which threads wait in front of it."""
    flags = zip(*(_needed(operands, size, even) for size in SIZES), strict=True)
    return [
        frozenset(size for size, needed in zip(SIZES, each, strict=True) if needed)
        for each in flags
    ]


def _needed(operands: Operands, size: Size, even: bool) -> Iterator[bool]:
    """For each kernel, whether threads wait in front of it in steps of a size."""
    since_barrier: list[Access] = []
    work: Sequence[CpuWork] = operands.work
    own_rows = (size in sizes for sizes in sizes_with_own_rows(work, even=even))
    for kernel, own in zip(work, own_rows, strict=True):
        accesses = list(_accesses(operands, kernel, size, even=even, own_rows=own))
        needed = any(a.conflicts(b) for a in accesses for b in since_barrier)
        if needed:
            since_barrier = []
        since_barrier += accesses
        yield needed


def _accesses(
    operands: Operands, kernel: CpuWork, size: Size, *, even: bool, own_rows: bool
) -> Iterator[Access]:
    """Lists a kernel's accesses to the memory that changes during a step."""
    plan = operands.plan
    if kernel.shares_sums:
        by_heads = even and kernel.dealt_by_heads
        yield Access("shared", 0, 1, HEADS if by_heads else None, writes=True)
    for name in (*kernel.reads, *kernel.writes):
        buffer = plan.root(name)
        if buffer.kind in ("weight", "input"):
            continue
        division: Division | None = None
        if own_rows:
            division = (buffer.name, "N")
        elif even and name in kernel.dealt_by_heads:
            division = (buffer.name, f"{kernel.kv_heads} heads")
        elif size == "few":
            division = OWN if buffer.name in operands.own else None
        elif kernel.is_row_wise and name not in kernel.chosen:
            division = (buffer.name, buffer.shape[0])
        in_arena = buffer.kind == "arena"
        yield Access(
            place="arena" if in_arena else buffer.name,
            begin=buffer.offset if in_arena else 0,
            end=buffer.offset + plan.arena_bytes_of(buffer) if in_arena else 1,
            division=division,
            writes=name in kernel.writes or name in kernel.mutated,
        )
