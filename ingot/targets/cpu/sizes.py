"""Division of work in steps of few, some or many rows; see docs/cpu.md, and team.h for the bounds.

few     every thread computes all rows of row-wise kernels, in memory of its own
some    row-wise kernels deal rows, and products deal columns. The product that reads attention
        deals rows, too: it is the smallest of a layer, and threads need not meet between it and
        the norm. If threads have unequally many KV heads, they must meet at attention; then the
        products before other norms deal rows as well
many    all kernels deal rows, so that threads meet at attention alone
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from ingot.targets.cpu.work import CpuWork

Size = Literal["few", "some", "many"]  # of a step, in rows
SIZES: tuple[Size, ...] = get_args(Size)


def sizes_with_own_rows(work: Sequence[CpuWork], *, even: bool) -> tuple[frozenset[Size], ...]:
    """For each kernel that could deal columns or heads, the sizes of steps in which it deals rows.

    Such kernels are products with a row for each token, and what follows them head by head. `even`
    says that threads have equally many KV heads.
    """
    sizes, after_attention = list[frozenset[Size]](), False
    before_norms = (*(follower.is_norm for follower in work[1:]), False)
    for kernel, before_norm in zip(work, before_norms, strict=True):
        found: tuple[Size, ...] = ()
        if not kernel.is_row_wise:
            if not (kernel.attends or kernel.is_stacked) and _has_tokens(kernel):
                joins = after_attention or (not even and before_norm)
                found = ("some", "many") if joins else ("many",)
            after_attention = kernel.attends
        sizes.append(frozenset(found))
    return tuple(sizes)


def _has_tokens(kernel: CpuWork) -> bool:
    results = [kernel.plan.buffer(name) for name in kernel.writes]
    return kernel.rows == "N" and all(b.kind != "output" for b in results)
