"""cast: round to another dtype; in a plan also to integers with scales."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.ops.registry import like, register


def reference(x: Tensor, out_dtype: torch.dtype) -> Tensor:
    """x [...] -> [...] in `out_dtype`, rounded to nearest even; always a copy.

    Where a plan's result is scaled, the rule is that of `round_to_int8`.
    """
    return x.to(out_dtype, copy=True)


register(
    "cast",
    reference,
    lambda a: like(a.x, a.out_dtype),
)
