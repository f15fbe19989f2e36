"""cast: round to another dtype; in a plan also to integers with scales."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.ops import samples
from ingot.ops.registry import Kwargs, Op, like, register


def reference(x: Tensor, out_dtype: torch.dtype) -> Tensor:
    """x [...] -> [...] in `out_dtype`, rounded to nearest even; always a copy.

    Where a plan's result is scaled, the rule is that of `round_to_int8`.
    """
    return x.to(out_dtype, copy=True)


def sample_inputs(rng: torch.Generator) -> list[Kwargs]:
    return [
        {"x": samples.normal(rng, 1, n, size, dtype=dtype), "out_dtype": out_dtype}
        for dtype, out_dtype in (samples.DTYPES, samples.DTYPES[::-1])
        for n, size in ((1, 64), (5, 37))
    ]


CAST = register(
    Op(
        name="cast",
        reference=reference,
        fake=lambda a: like(a.x, a.out_dtype),
        sample_inputs=sample_inputs,
    )
)
