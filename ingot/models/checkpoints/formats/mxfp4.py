"""mxfp4 (OCP Microscaling Formats 1.0), as gpt-oss stores its experts.

    x_blocks  u8 [..., K / 32, 16]   byte b of a block has inputs 2 b (the low nibble) and 2 b + 1
    x_scales  u8 [..., K / 32]       a block's numbers are those of its codes times 2^(scale - 127)

A code is a float of 4 bits, e2m1. Twice its number is an integer of at most 12, so int8 in groups
of 32 with the scale 2^(scale - 128) holds exactly the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ingot.artifact.formats import Storage
from ingot.errors import CheckpointError, Noting, OnFault
from ingot.models.checkpoints.formats.floats import (
    BIAS,
    FLOAT4_DOUBLED,
    NOT_A_POWER,
    nibbles,
    powers_of,
)
from ingot.models.checkpoints.formats.parts import Infos, MatrixParts, fault_of, misshapen
from ingot.models.checkpoints.formats.quantized import (
    Decoded,
    QuantizedTensor,
    View,
    quantized,
    storage_of,
)
from ingot.models.checkpoints.formats.settings import QuantizationKeys
from ingot.models.checkpoints.mapped_file import TensorInfo

LAYOUT = MatrixParts(("_blocks", "_scales"))
GROUP = 32


@dataclass(frozen=True, slots=True)
class Mxfp4:
    """A matrix of mxfp4, or several of them on top of each other."""

    blocks: TensorInfo
    scales: TensorInfo
    columns: int

    label = f"mxfp4 g{GROUP}"

    @property
    def storage(self) -> Storage | None:
        return storage_of(8, self.columns, GROUP)

    def rows(self, view: View, first: int, last: int) -> Decoded:
        codes = view(self.scales)[first:last]
        if (codes == NOT_A_POWER).any():
            raise CheckpointError(
                f"the tensor {self.scales.name} holds scales that are not numbers",
                hint="the checkpoint is damaged: fetch it again, or use another",
            )
        stored = view(self.blocks)[first:last]
        values = FLOAT4_DOUBLED[nibbles(stored.reshape(*codes.shape[:-1], -1))]
        return Decoded(values, GROUP, powers_of(codes, BIAS + 1))


def find(settings: QuantizationKeys, infos: Infos, on_fault: OnFault) -> Iterator[QuantizedTensor]:
    """The matrices of a checkpoint, experts stacked as they are stored."""
    del settings
    for stem, parts in LAYOUT.matrices(infos, on_fault):
        blocks, scales = parts["_blocks"], parts["_scales"]
        shape = (*blocks.shape[:-2], blocks.shape[-2] * GROUP) if len(blocks.shape) > 2 else ()
        with Noting(on_fault):
            wrong = misshapen(
                fault_of(blocks, (*scales.shape, GROUP // 2), ("U8",)),
                fault_of(scales, blocks.shape[:-1], ("U8",)),
            )
            if wrong:
                raise wrong
            yield quantized(stem, shape, (blocks, scales), Mxfp4(blocks, scales, shape[-1]))
