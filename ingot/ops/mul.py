"""mul: a product with a number, such as the scale of embedded tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.ops import samples
from ingot.ops.registry import Kwargs, Op, like, register


def reference(x: Tensor, factor: float, out_dtype: torch.dtype = torch.float32) -> Tensor:
    """x [...] -> x * factor, in float32, rounded once."""
    return (x.float() * factor).to(out_dtype)


def sample_inputs(rng: torch.Generator) -> list[Kwargs]:
    return [
        {"x": samples.normal(rng, 1, n, size), "factor": factor, "out_dtype": out_dtype}
        for out_dtype in samples.DTYPES
        for n, size, factor in ((1, 64, 8.0), (5, 37, 0.3))
    ]


MUL = register(
    Op(
        name="mul",
        reference=reference,
        fake=lambda a: like(a.x, a.out_dtype),
        sample_inputs=sample_inputs,
    )
)
