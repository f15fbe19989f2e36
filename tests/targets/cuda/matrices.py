"""Random weights in every format that products take."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.artifact.formats import Format
from ingot.compiler.interpret import Value
from ingot.ops.dtypes import TORCH_DTYPES
from ingot.ops.scaled import Scaled
from tests.support import samples
from tests.targets.cpu.matrices import (
    drawn_rows,
    in_bits,
    in_codes,
    int4,
    int8,
    with_bytes,
    with_minimums,
    with_zeros,
    zeros_beside,
)

__all__ = ["drawn", "in_bits", "int4", "int8", "with_zeros"]

# As the types of GGUF files have them, and columns of which the last block or tile is short.
TWO_LEVELS = {
    "Q4_1": (with_minimums(4, 32, 32), 96),
    "Q5_1": (with_minimums(5, 32, 32), 160),
    "Q4_K": (with_minimums(4, 32, 128), 330),
    "Q5_K": (with_minimums(5, 32, 128), 576),
    "Q6_K": (with_bytes(in_bits(6, 16, 128)), 330),
    "Q3_K": (with_bytes(int4(16, 128)), 256),
    "Q2_K": (with_minimums(4, 16, 128), 640),
    "IQ4_NL": (in_codes(int4(32, 32)), 96),
    "IQ4_XS": (with_bytes(in_codes(int4(32, 128))), 576),
}
# Blocks that are half of a tile, and columns whose last tile is one block (80), a part of one (330)
# or one and a part of the second (92).
PAIRS = (
    (int4(16, 16), 80),
    (with_zeros(int4(16, 16)), 330),
    (in_bits(5, 16, 16), 330),
    (with_zeros(in_bits(6, 16, 16)), 80),
    (int8(16), 330),
    (with_zeros(int8(16)), 80),
    (with_zeros(int8(16)), 92),
)


def drawn(form: Format, outputs: int, columns: int, seed: int = 0) -> Value:
    """A matrix whose products with values of unit size are of unit size."""
    rng = torch.Generator().manual_seed(seed)
    if not form.is_scaled:
        return samples.weight(rng, outputs, columns, dtype=TORCH_DTYPES[form.dtype])
    if form.is_two_level:
        return drawn_rows(form, outputs, columns, rng)
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
