"""Random weights in every format that products take."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ingot.artifact.formats import INTEGERS, Format
from ingot.compiler.interpret import Value
from ingot.ops.dtypes import TORCH_DTYPES
from ingot.ops.scaled import Scaled
from tests.support import samples
from tests.targets.cpu.matrices import zeros_beside


def drawn(form: Format, outputs: int, columns: int, seed: int = 0) -> Value:
    """A matrix whose products with values of unit size are of unit size."""
    rng = torch.Generator().manual_seed(seed)
    if not form.is_scaled:
        return samples.weight(rng, outputs, columns, dtype=TORCH_DTYPES[form.dtype])
    bound = 2 ** (form.bits - 1)

    def integers(low: int, high: int, count: int) -> Tensor:
        return torch.randint(low, high, (outputs, count), generator=rng).to(torch.int8)

    values = integers(1 - bound if form.bits == 8 else -bound, bound, columns)
    groups = -(-columns // form.group)
    multipliers = integers(-8, 8, groups) if form.has_multipliers else None
    zeros = integers(-bound, bound, groups) if form.zeros else None
    largest = bound * (8 if form.has_multipliers else 1) * columns**0.5
    if multipliers is not None and zeros is not None:
        multipliers = (multipliers + 8) % (1 << 8 - form.bits) + 1
        zeros, largest = zeros_beside(multipliers, zeros, form.bits), 2 * largest
    scales = samples.normal(rng, outputs, form.blocks_of(columns)) / largest
    widths = {"block": form.block, "group": form.group}
    return Scaled(values, multipliers, scales.half().float(), zeros, **widths)


def int8(block: int) -> Format:
    return Format("int8", block, block, "float16")


def int4(group: int, block: int) -> Format:
    return Format("int4", block, group, "float16")


def in_bits(bits: int, group: int, block: int) -> Format:
    return Format(INTEGERS[bits], block, group, "float16")


def with_zeros(form: Format) -> Format:
    return replace(form, zeros=True)
