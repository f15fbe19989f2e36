"""quantized_linear: a product of int8 activations with an int8 or int4 weight matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.ops import samples
from ingot.ops.registry import (
    DEFAULT_TOLERANCE,
    Args,
    Kwargs,
    Op,
    Tolerance,
    register,
    tensor_bytes,
)

# A dot product of so many int8 pairs is an integer that float32 holds exactly.
EXACT_IN_FLOAT32 = 1024


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
    residual: Tensor | None = None,
) -> Tensor:
    """values int8 [..., K], scales [..., K/B], weight int8 [O, K], weight_multipliers int8
    [O, K/G] or None for ones, weight_scales [O, K/B], bias [O] or None, residual [..., O] or
    None -> float32 [..., O].

    The sum over the blocks, ascending, of float(dot) * (scale * weight scale), where dot is the
    exact integer product of a block of x with the weights times their group's multiplier; then
    the bias, then the residual.
    """
    whole = integers(weight, weight_multipliers)
    wide = torch.float32 if block <= EXACT_IN_FLOAT32 else torch.float64
    out = values.new_zeros((*values.shape[:-1], weight.shape[0]), dtype=torch.float32)
    parts = zip(values.split(block, -1), whole.split(block, -1), strict=True)
    for index, (x, w) in enumerate(parts):
        dot = (x.to(wide) @ w.to(wide).T).float()
        out += dot * (scales[..., index, None] * weight_scales[:, index].float())
    out = out if bias is None else out + bias.float()
    return out if residual is None else out + residual.float()


def integers(weight: Tensor, multipliers: Tensor | None) -> Tensor:
    """weight int8 [R, K], each times the multiplier [R, K/G] of its group: int8 [R, K]."""
    if multipliers is None:
        return weight
    groups: Tensor = weight.unflatten(-1, (multipliers.shape[-1], -1))
    return (groups * multipliers[..., None]).flatten(-2)


def sample_inputs(rng: torch.Generator) -> list[Kwargs]:
    return [
        {
            **activations(rng, n, num_in, block),
            **samples.quantized_weight(rng, num_out, num_in, group=group, block=block, bits=bits),
            "bias": samples.normal(rng, num_out) if with_bias else None,
            "residual": samples.normal(rng, 1, n, num_out) if n > 5 else None,
            "group": group,
            "block": block,
            "bits": bits,
        }
        for bits, n, num_in, num_out, group, block, with_bias in (
            (8, 1, 64, 64, 32, 32, False),
            (8, 5, 192, 144, 64, 64, True),
            (8, 70, 128, 320, 32, 32, True),
            (8, 3, 200, 48, 200, 200, False),
            (4, 1, 64, 64, 32, 32, False),
            (4, 5, 192, 144, 32, 64, True),
            (4, 13, 256, 27, 128, 128, False),
            (4, 3, 256, 48, 64, 128, True),
            (4, 70, 128, 320, 32, 128, True),
        )
    ]


def activations(rng: torch.Generator, n: int, size: int, block: int) -> Kwargs:
    values = torch.randint(-127, 128, (1, n, size), generator=rng).to(torch.int8)
    scales = samples.normal(rng, 1, n, size // block).abs() / 127
    return {"values": values, "scales": scales}


def fake(a: Args) -> Tensor:
    shape = (*a.values.shape[:-1], a.weight.shape[0])
    out: Tensor = a.values.new_empty(shape, dtype=torch.float32)
    return out


def product_bytes(a: Args) -> int:
    """What a product reads: weights in `bits` bits, their multipliers in 4, their scales in 16."""
    multipliers = 0 if a.weight_multipliers is None else a.weight_multipliers.numel()
    stored: int = a.weight.numel() * a.bits // 8 + multipliers // 2 + 2 * a.weight_scales.numel()
    return stored + tensor_bytes([a.values, a.scales, a.bias])


def num_bytes(a: Args) -> int:
    return product_bytes(a) + tensor_bytes([a.residual, fake(a)])


QUANTIZED_LINEAR = register(
    Op(
        name="quantized_linear",
        reference=reference,
        fake=fake,
        sample_inputs=sample_inputs,
        num_flops=lambda a: 2 * a.values.numel() * a.weight.shape[0],
        num_bytes=num_bytes,
        # the integers are exact; the sum over blocks is rounded in another way by fused adds
        tolerance={**DEFAULT_TOLERANCE, torch.float32: Tolerance(1e-5, 5e-5)},
    )
)
