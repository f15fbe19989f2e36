"""Ops whose every row of results comes from that row of their operands alone.

Threads can run several of them in turn, each over its own rows, without waiting for each other;
over few rows every thread can run them by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ingot.artifact.plan import Instruction

# By op, the arguments that it reads other rows of.
GATHERED: Mapping[str, tuple[str, ...]] = {
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
    "rms_norm_quantize": (),
    "rope_table": (),
    "select_rows": ("x",),
    "silu_mul": (),
}


def is_row_wise(instruction: Instruction) -> bool:
    return instruction.op in GATHERED


def attends(instruction: Instruction) -> bool:
    """Whether its rows of results come from what other tokens have left in the cache."""
    return instruction.op.startswith("paged_attention")


def lasting_reads(instructions: Sequence[Instruction]) -> Iterator[tuple[str, ...]]:
    """For each instruction, the buffers that must still hold what was written to them.

    Those that it reads, and those that instructions before it have read where no thread waits for
    the others in between: in a step of many rows, since the last attention.
    """
    before: tuple[str, ...] = ()
    for instruction in instructions:
        reads = tuple(instruction.inputs.values())
        yield (*before, *reads)
        before = () if attends(instruction) else (*before, *reads)
