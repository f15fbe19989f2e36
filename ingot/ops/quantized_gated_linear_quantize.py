"""quantized_gated_linear_quantize: quantized_gated_linear, rounded to int8 for the next product."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.ops import quantize, quantized_gated_linear, quantized_linear
from ingot.ops.registry import Args, Kwargs, Op, Tolerance, register, tensor_bytes


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
    result_group: int,
) -> tuple[Tensor, Tensor]:
    """Arguments of `quantized_gated_linear` -> out int8 [..., F], scales [..., F / group of the
    result]: its result by the rule of `quantize`.
    """
    out = quantized_gated_linear.reference(
        values, scales, weight, weight_multipliers, weight_scales, bias, group, block, bits, kind
    )
    return quantize.reference(out, result_group)


def sample_inputs(rng: torch.Generator) -> list[Kwargs]:
    return [
        {**{n: x for n, x in given.items() if n != "out_dtype"}, "result_group": 32}
        for given in quantized_gated_linear.sample_inputs(rng)[:3]
    ]


def fake(a: Args) -> tuple[Tensor, Tensor]:
    size = a.weight.shape[0] // 2
    values = a.values.new_empty((*a.values.shape[:-1], size))
    shape = (*a.values.shape[:-1], size // a.result_group)
    return values, a.values.new_empty(shape, dtype=torch.float32)


QUANTIZED_GATED_LINEAR_QUANTIZE = register(
    Op(
        name="quantized_gated_linear_quantize",
        reference=reference,
        fake=fake,
        sample_inputs=sample_inputs,
        num_flops=lambda a: 2 * a.values.numel() * a.weight.shape[0],
        num_bytes=lambda a: quantized_linear.product_bytes(a) + tensor_bytes(fake(a)),
        outputs=("out", "out_scales"),
        # A value may round to its neighbour.
        tolerance={torch.float32: Tolerance(1e-5, 5e-5), torch.int8: Tolerance(0.0, 1.0)},
    )
)
