"""How many rows a step has, and what that changes in how its threads divide the work; see team.h.

few     every thread carries out row-wise instructions by itself, and what they write it has for
        itself
some    they deal rows; products deal columns, but the one that reads attention deals rows, too:
        it is the smallest of a layer, and threads need not meet between it and the norm. So do
        those before other norms if threads must meet at attention, having unequally many KV heads
many    all deal rows, so that threads meet at attention alone
"""

from __future__ import annotations

from typing import Literal, get_args

from ingot.artifact.plan import Instruction
from ingot.targets.cpu.operands import Operands
from ingot.targets.cpu.row_wise import attends, is_row_wise

NORMS = ("add_rms_norm", "layer_norm", "rms_norm", "rms_norm_quantize")
Size = Literal["few", "some", "many"]  # of a step, in rows
SIZES: tuple[Size, ...] = get_args(Size)


def sizes_with_own_rows(operands: Operands, *, even: bool) -> tuple[frozenset[Size], ...]:
    """In steps of which sizes each instruction deals rows, of those that can deal columns or heads.

    These are products with a row for each token, and what follows them head by head. `even` says
    that threads have equally many KV heads.
    """
    sizes, after_attention = list[frozenset[Size]](), False
    instructions = operands.plan.instructions
    followers = (*(instruction.op for instruction in instructions[1:]), "")
    for instruction, follower in zip(instructions, followers, strict=True):
        found: tuple[Size, ...] = ()
        if not is_row_wise(instruction):
            if not attends(instruction) and _has_tokens(operands, instruction):
                joins = after_attention or (not even and follower in NORMS)
                found = ("some", "many") if joins else ("many",)
            after_attention = attends(instruction)
        sizes.append(frozenset(found))
    return tuple(sizes)


def _has_tokens(operands: Operands, instruction: Instruction) -> bool:
    results = [operands.buffers[name] for name in instruction.outputs.values()]
    return operands.rows_of(instruction) == "N" and all(b.kind != "output" for b in results)
