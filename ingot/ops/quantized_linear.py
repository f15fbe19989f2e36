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
    weight_scales: Tensor,
    bias: Tensor | None,
    group: int,
    bits: int,
) -> Tensor:
    """values int8 [..., K], scales [..., K/G], weight int8 [O, K], weight_scales [O, K/G],
    bias [O] or None -> float32 [..., O].

    The sum over the groups, ascending, of float(dot) * (scale * weight scale), where dot is the
    exact integer product of a group; then the bias.
    """
    wide = torch.float32 if group <= EXACT_IN_FLOAT32 else torch.float64
    out = values.new_zeros((*values.shape[:-1], weight.shape[0]), dtype=torch.float32)
    parts = zip(values.split(group, -1), weight.split(group, -1), strict=True)
    for index, (x, w) in enumerate(parts):
        dot = (x.to(wide) @ w.to(wide).T).float()
        out += dot * (scales[..., index, None] * weight_scales[:, index].float())
    return out if bias is None else out + bias.float()


def sample_inputs(rng: torch.Generator) -> list[Kwargs]:
    return [
        {
            **activations(rng, n, num_in, group),
            **samples.quantized_weight(rng, num_out, num_in, group, bits),
            "bias": samples.normal(rng, num_out) if with_bias else None,
            "group": group,
            "bits": bits,
        }
        for bits in (8, 4)
        for n, num_in, num_out, group, with_bias in (
            (1, 64, 64, 32, False),
            (5, 192, 144, 64, True),
            (13, 256, 27, 128, False),
            (70, 128, 320, 32, True),
            (3, 200, 48, 200, False),
        )
        if bits == 8 or group != num_in
    ]


def activations(rng: torch.Generator, n: int, size: int, group: int) -> Kwargs:
    values = torch.randint(-127, 128, (1, n, size), generator=rng).to(torch.int8)
    scales = samples.normal(rng, 1, n, size // group).abs() / 127
    return {"values": values, "scales": scales}


def fake(a: Args) -> Tensor:
    shape = (*a.values.shape[:-1], a.weight.shape[0])
    out: Tensor = a.values.new_empty(shape, dtype=torch.float32)
    return out


def num_bytes(a: Args) -> int:
    """Weights are stored in `bits` bits, their scales in 16."""
    stored: int = a.weight.numel() * a.bits // 8 + 2 * a.weight_scales.numel()
    return stored + tensor_bytes([a.values, a.scales, a.bias, fake(a)])


QUANTIZED_LINEAR = register(
    Op(
        name="quantized_linear",
        reference=reference,
        fake=fake,
        sample_inputs=sample_inputs,
        num_flops=lambda a: 2 * a.values.numel() * a.weight.shape[0],
        num_bytes=num_bytes,
        # the integers are exact; the sum over groups is rounded in another way by fused adds
        tolerance={**DEFAULT_TOLERANCE, torch.float32: Tolerance(1e-5, 5e-5)},
    )
)
