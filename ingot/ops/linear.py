"""linear: a product with a weight matrix, accumulated in float32."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ingot.ops import samples
from ingot.ops.registry import DEFAULT_TOLERANCE, Kwargs, Op, Tolerance, register


def reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    out_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """x [..., I], weight [O, I], bias [O] or None, residual [..., O] or None -> [..., O]:
    x @ weight.T + bias + residual, rounded once."""
    bias = None if bias is None else bias.float()
    out = F.linear(x.float(), weight.float(), bias)
    return (out if residual is None else out + residual.float()).to(out_dtype)


def sample_inputs(rng: torch.Generator) -> list[Kwargs]:
    return [
        {
            "x": samples.normal(rng, 1, n, num_in, dtype=dtype),
            "weight": samples.weight(rng, num_out, num_in, dtype),
            "bias": samples.normal(rng, num_out) if with_bias else None,
            "residual": samples.normal(rng, 1, n, num_out) if with_residual else None,
        }
        for dtype in samples.DTYPES
        for n, num_in, num_out, with_bias, with_residual in (
            (1, 64, 64, False, True),
            (5, 200, 144, True, False),
            (13, 37, 27, False, False),
            (70, 128, 320, True, True),
        )
    ]


LINEAR = register(
    Op(
        name="linear",
        reference=reference,
        fake=lambda a: a.x.new_empty((*a.x.shape[:-1], a.weight.shape[0]), dtype=a.out_dtype),
        sample_inputs=sample_inputs,
        num_flops=lambda a: 2 * a.x.numel() * a.weight.shape[0],
        # vdpbf16ps flushes denormals and rounds each step of the sum in its own way
        tolerance={**DEFAULT_TOLERANCE, torch.float32: Tolerance(1e-5, 5e-5)},
    )
)
