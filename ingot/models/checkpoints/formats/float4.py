"""Matrices of e2m1, floats of 4 bits, as compressed-tensors packs them.

weight_packed  u8 [O, K / 2]   byte b has inputs 2 b (the low nibble) and 2 b + 1
weight_scale   [O, K / G]      nvfp4: e4m3, divided by weight_global_scale, G = 16;
                               mxfp4: u8, a power of two, G = 32
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ingot.errors import CheckpointError
from ingot.models.checkpoints.formats.floats import FLOAT4_DOUBLED, FLOAT8, nibbles, scales_of
from ingot.models.checkpoints.formats.gptq import TWO
from ingot.models.checkpoints.formats.mxfp4 import Mxfp4
from ingot.models.checkpoints.formats.parts import Infos, fault_of, misshapen, undivided
from ingot.models.checkpoints.formats.quantized import (
    Decoded,
    MatrixEncoding,
    QuantizedTensor,
    View,
    quantized,
)
from ingot.models.checkpoints.mapped_file import TensorInfo


@dataclass(frozen=True, slots=True)
class Nvfp4:
    """A matrix of nvfp4. Its scales are products that float16 does not hold."""

    packed: TensorInfo
    scales: TensorInfo
    divisor: TensorInfo
    group: int

    label = "nvfp4 g16"
    storage = None

    def rows(self, view: View, first: int, last: int) -> Decoded:
        values = FLOAT4_DOUBLED[nibbles(view(self.packed)[first:last])].astype(np.float32) / 2
        (divisor,) = scales_of(view, self.divisor).reshape(-1)
        if divisor == 0:
            raise CheckpointError(
                f"the tensor {self.divisor.name} is 0, and scales are divided by it",
                hint="the checkpoint is damaged: fetch it again",
            )
        scales = scales_of(view, self.scales, slice(first, last)) / divisor
        return Decoded(values, self.group, scales)


def float4_matrix(stem: str, parts: Infos, group: int) -> QuantizedTensor:
    """The matrix of these tensors. Raises CheckpointError where they do not fit together."""
    packed, scales = parts[".weight_packed"], parts[".weight_scale"]
    divisor = parts.get(".weight_global_scale")
    if len(packed.shape) != 2:
        raise CheckpointError(f"{packed.name} has shape {list(packed.shape)}", hint=TWO)
    rows, columns = packed.shape[0], packed.shape[1] * 2
    if group < 1 or columns % group:
        raise undivided(stem, columns, group)
    wrong = misshapen(
        fault_of(packed, packed.shape, ("U8",)),
        fault_of(scales, (rows, columns // group), (FLOAT8,) if divisor else ("U8",)),
        fault_of(divisor, (1,), ("F32",)) if divisor else "",
        f"groups of {group} in {stem}.weight_scale" if not divisor and group != 32 else "",
    )
    if wrong:
        raise wrong
    encoding: MatrixEncoding = (
        Nvfp4(packed, scales, divisor, group) if divisor else Mxfp4(packed, scales, columns)
    )
    return quantized(f"{stem}.weight", (rows, columns), tuple(parts.values()), encoding)
