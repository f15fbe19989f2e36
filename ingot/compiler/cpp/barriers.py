"""Where the threads of a step must wait for each other, from the plan's data flow.

Two instructions need a barrier between them if one writes memory that the other reads or writes,
unless both deal the rows of that buffer to the threads in the same way: then every thread meets
only what it wrote itself. Temporaries that share arena bytes are the same memory.

In a step of a single token there are no rows to deal. Every thread carries out row-wise
instructions by itself, and what they write it has for itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ingot.artifact.plan import DTYPE_BYTES, Dim, Instruction
from ingot.compiler.cpp.operands import Operands
from ingot.compiler.row_wise import GATHERED

Division = tuple[str, Dim]  # a buffer, and the rows that are dealt
OWN: Division = ("", 1)  # every thread has memory of its own


@dataclass(frozen=True, slots=True)
class Barrier:
    """Whether threads wait before an instruction: in steps of one token, and in larger ones."""

    single: bool
    larger: bool


@dataclass(frozen=True, slots=True)
class Access:
    """Memory that an instruction touches: bytes of one place, and how threads divide them."""

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
    """What comes before each instruction."""
    flags = (_needed(operands, single=single) for single in (True, False))
    return tuple(Barrier(*pair) for pair in zip(*flags, strict=True))


def _needed(operands: Operands, *, single: bool) -> Iterator[bool]:
    since_barrier: list[Access] = []
    for instruction in operands.plan.instructions:
        accesses = list(_accesses(operands, instruction, single))
        needed = any(a.conflicts(b) for a in accesses for b in since_barrier)
        if needed:
            since_barrier = []
        since_barrier += accesses
        yield needed


def _accesses(operands: Operands, instruction: Instruction, single: bool) -> Iterator[Access]:
    """What an instruction touches of the memory that changes during a step."""
    for argument, name in (*instruction.inputs.items(), *instruction.outputs.items()):
        buffer = operands.root(operands.buffers[name])
        if buffer.kind in ("weight", "input"):
            continue
        if single:
            division = OWN if buffer.name in operands.own else None
        else:
            dealt = argument not in GATHERED.get(instruction.op, (argument,))
            division = (buffer.name, buffer.shape[0]) if dealt else None
        limits = operands.plan.limits
        nbytes = DTYPE_BYTES[buffer.dtype] * math.prod(map(limits.bound, buffer.shape))
        in_arena = buffer.kind == "arena"
        yield Access(
            place="arena" if in_arena else buffer.name,
            begin=buffer.offset if in_arena else 0,
            end=buffer.offset + nbytes if in_arena else 1,
            division=division,
            writes=argument in instruction.outputs
            or (buffer.kind == "cache" and instruction.op.endswith("kv_write")),
        )
