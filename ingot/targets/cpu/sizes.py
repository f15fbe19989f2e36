"""How many rows a step has, and what that changes in how its threads divide the work; see team.h.

few     every thread carries out row-wise instructions by itself, and what they write it has for
        itself
some    they deal rows; products deal columns, but the one that reads attention deals rows, too:
        it is the smallest of a layer, and threads need not meet between it and the norm. So do
        those before other norms if threads must meet at attention, having unequally many KV heads
many    all deal rows, so that threads meet at attention alone
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from ingot.targets.cpu.work import Work

NORMS = ("add_rms_norm", "layer_norm", "rms_norm", "rms_norm_quantize")
Size = Literal["few", "some", "many"]  # of a step, in rows
SIZES: tuple[Size, ...] = get_args(Size)


def sizes_with_own_rows(work: Sequence[Work], *, even: bool) -> tuple[frozenset[Size], ...]:
    """In steps of which sizes each kernel deals rows, of those that can deal columns or heads.

    These are products with a row for each token, and what follows them head by head. `even` says
    that threads have equally many KV heads.
    """
    sizes, after_attention = list[frozenset[Size]](), False
    followers = (*(kernel.kernel for kernel in work[1:]), "")
    for kernel, follower in zip(work, followers, strict=True):
        found: tuple[Size, ...] = ()
        if not kernel.is_row_wise:
            if not kernel.attends and _has_tokens(kernel):
                joins = after_attention or (not even and follower in NORMS)
                found = ("some", "many") if joins else ("many",)
            after_attention = kernel.attends
        sizes.append(frozenset(found))
    return tuple(sizes)


def _has_tokens(kernel: Work) -> bool:
    results = [kernel.plan.buffer(name) for name in kernel.writes]
    return kernel.rows == "N" and all(b.kind != "output" for b in results)
