"""rms_norm_quantize: a norm whose results are rounded to int8 for the next product."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.ops import quantize, rms_norm
from ingot.ops.registry import DEFAULT_TOLERANCE, Kwargs, Op, Tolerance, register

GROUPS = {64: 32, 200: 40, 37: 37}  # of the samples' rows


def reference(
    x: Tensor, weight: Tensor, eps: float, group: int, offset: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Arguments of `rms_norm` -> out int8 [..., C], scales float32 [..., C / group]: its result,
    by the rule of `quantize`."""
    return quantize.reference(rms_norm.normalize(x, weight, eps, offset), group)


def sample_inputs(rng: torch.Generator) -> list[Kwargs]:
    given = rms_norm.sample_inputs(rng)
    dtypes = [one.pop("out_dtype") for one in given]
    return [
        {**one, "x": one["x"].to(dtype), "group": GROUPS[len(one["weight"])]}
        for one, dtype in zip(given, dtypes, strict=True)
    ]


RMS_NORM_QUANTIZE = register(
    Op(
        name="rms_norm_quantize",
        reference=reference,
        fake=quantize.fake,
        sample_inputs=sample_inputs,
        num_flops=lambda a: 7 * a.x.numel(),
        outputs=("out", "out_scales"),
        # A sum in another order moves a value that lies between two integers.
        tolerance={**DEFAULT_TOLERANCE, torch.int8: Tolerance(0.0, 1.0)},
    )
)
