"""Where the threads of a step must wait for each other, from the plan's data flow.

Two instructions need a barrier between them if one writes memory that the other reads or writes,
unless both deal the rows of that buffer to the threads in the same way: then every thread meets
only what it wrote itself. Temporaries that share arena bytes are the same memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ingot.artifact.plan import DTYPE_BYTES, Dim, Instruction
from ingot.compiler.cpp.operands import Operands

# Ops whose kernels give thread t the rows share(rows, t) of every operand but these.
BY_ROWS: dict[str, tuple[str, ...]] = {
    "activation": (),
    "add": (),
    "add_rms_norm": (),
    "cast": (),
    "embedding": (),
    "gelu_mul": (),
    "layer_norm": (),
    "quantize": (),
    "quantized_embedding": (),
    "relu_mul": (),
    "rms_norm": (),
    "rope_table": (),
    "select_rows": ("x",),
    "silu_mul": (),
}


@dataclass(frozen=True, slots=True)
class Access:
    """Memory that an instruction touches: bytes of one place, and how threads divide them."""

    place: str
    begin: int
    end: int
    division: tuple[str, Dim] | None
    writes: bool

    def conflicts(self, other: Access) -> bool:
        meet = self.place == other.place and self.begin < other.end and other.begin < self.end
        shared = self.division is None or self.division != other.division
        return meet and shared and (self.writes or other.writes)


def barriers(operands: Operands) -> tuple[bool, ...]:
    """For each instruction, whether a barrier comes before it."""
    found: list[bool] = []
    since_barrier: list[Access] = []
    for instruction in operands.plan.instructions:
        accesses = list(_accesses(operands, instruction))
        needed = any(a.conflicts(b) for a in accesses for b in since_barrier)
        if needed:
            since_barrier = []
        since_barrier += accesses
        found.append(needed)
    return tuple(found)


def _accesses(operands: Operands, instruction: Instruction) -> Iterator[Access]:
    """What an instruction touches of the memory that changes during a step."""
    by_rows = instruction.op in BY_ROWS
    gathered = BY_ROWS.get(instruction.op, ())
    for argument, name in (*instruction.inputs.items(), *instruction.outputs.items()):
        buffer = operands.root(operands.buffers[name])
        if buffer.kind in ("weight", "input"):
            continue
        divided = by_rows and argument not in gathered
        limits = operands.plan.limits
        nbytes = DTYPE_BYTES[buffer.dtype] * math.prod(map(limits.bound, buffer.shape))
        in_arena = buffer.kind == "arena"
        yield Access(
            place="arena" if in_arena else buffer.name,
            begin=buffer.offset if in_arena else 0,
            end=buffer.offset + nbytes if in_arena else 1,
            division=(buffer.name, buffer.shape[0]) if divided else None,
            writes=argument in instruction.outputs
            or (buffer.kind == "cache" and instruction.op.endswith("kv_write")),
        )
