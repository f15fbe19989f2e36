"""quantized_gated_linear: gated_linear with a quantized weight."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.ops import quantized_linear, samples
from ingot.ops.gated_linear import gated
from ingot.ops.registry import DEFAULT_TOLERANCE, Args, Kwargs, Op, register, tensor_bytes


def reference(
    values: Tensor,
    scales: Tensor,
    weight: Tensor,
    weight_multipliers: Tensor | None,
    weight_scales: Tensor,
    bias: Tensor | None,
    group: int,
    block: int,
    bits: int,
    kind: str,
    out_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Arguments of `quantized_linear`, weight [2 F, K] -> [..., F]: activation(gate) * up, where
    gate and up are the halves of its result; float32 inside, rounded once.
    """
    product = quantized_linear.reference(
        values, scales, weight, weight_multipliers, weight_scales, bias, group, block, bits
    )
    return gated(product, kind).to(out_dtype)


def sample_inputs(rng: torch.Generator) -> list[Kwargs]:
    return [
        {
            **quantized_linear.activations(rng, n, num_in, block),
            **samples.quantized_weight(rng, 2 * size, num_in, group=group, block=block, bits=bits),
            "bias": samples.normal(rng, 2 * size) if with_bias else None,
            **{"group": group, "block": block, "bits": bits},
            "kind": kind,
            "out_dtype": out_dtype,
        }
        for out_dtype in samples.DTYPES
        for bits, n, num_in, size, group, block, with_bias, kind in (
            (8, 1, 64, 64, 32, 32, False, "silu"),
            (8, 5, 192, 192, 64, 64, True, "gelu"),
            (4, 3, 256, 64, 32, 128, False, "gelu_tanh"),
        )
    ]


def fake(a: Args) -> Tensor:
    shape = (*a.values.shape[:-1], a.weight.shape[0] // 2)
    out: Tensor = a.values.new_empty(shape, dtype=a.out_dtype)
    return out


QUANTIZED_GATED_LINEAR = register(
    Op(
        name="quantized_gated_linear",
        reference=reference,
        fake=fake,
        sample_inputs=sample_inputs,
        num_flops=lambda a: 2 * a.values.numel() * a.weight.shape[0],
        num_bytes=lambda a: quantized_linear.product_bytes(a) + tensor_bytes([fake(a)]),
        tolerance={
            **DEFAULT_TOLERANCE,
            torch.float32: quantized_linear.QUANTIZED_LINEAR.tolerance[torch.float32],
        },
    )
)
