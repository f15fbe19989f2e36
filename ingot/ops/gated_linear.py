"""gated_linear: both products of a gated MLP and its gate."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ingot.ops import linear, samples
from ingot.ops.registry import Kwargs, Op, register

# What the first half of a product goes through.
KINDS: Mapping[str, partial[Tensor]] = {
    "silu": partial(F.silu),
    "gelu": partial(F.gelu),
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": partial(F.relu),
}


def gated(product: Tensor, kind: str) -> Tensor:
    """[..., 2 F] -> [..., F]: activation(first half) * second half."""
    gate, up = product.chunk(2, dim=-1)
    return KINDS[kind](gate) * up


def reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    kind: str,
    out_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """x [..., I], weight [2 F, I], bias [2 F] or None -> [..., F]: activation(gate) * up, where
    gate and up are the halves of x @ weight.T + bias; float32 inside, rounded once.
    """
    return gated(linear.reference(x, weight, bias), kind).to(out_dtype)


def sample_inputs(rng: torch.Generator) -> list[Kwargs]:
    return [
        {
            "x": samples.normal(rng, 1, n, num_in, dtype=dtype),
            "weight": samples.weight(rng, 2 * size, num_in, dtype),
            "bias": samples.normal(rng, 2 * size) if with_bias else None,
            "kind": kind,
            "out_dtype": dtype,
        }
        for dtype in samples.DTYPES
        for n, num_in, size, with_bias, kind in (
            (1, 64, 64, False, "silu"),
            (5, 200, 37, True, "gelu"),
            (13, 37, 128, False, "gelu_tanh"),
            (3, 48, 64, False, "relu"),
        )
    ]


GATED_LINEAR = register(
    Op(
        name="gated_linear",
        reference=reference,
        fake=lambda a: a.x.new_empty((*a.x.shape[:-1], a.weight.shape[0] // 2), dtype=a.out_dtype),
        sample_inputs=sample_inputs,
        num_flops=lambda a: 2 * a.x.numel() * a.weight.shape[0],
        tolerance=linear.LINEAR.tolerance,
    )
)
