"""Packs weights in int8 and int4: the bytes that `kernels/quantized_panels.h` reads.

`weights` says how they lie.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.artifact.formats import Format
from ingot.ops.scaled import Scaled
from ingot.targets.cpu.weights import (
    HALF_BLOCK,
    PANEL_ROWS,
    SCALE_BYTES,
    STORED_TOGETHER,
    ZERO_POINTS,
    block_bytes,
    fits,
    panel_bytes,
    whole,
    word_bytes,
)


def pack_quantized(matrix: Scaled, form: Format) -> Tensor:
    """A matrix -> its panels, uint8, 1-D.

    The rows start a panel. int8 values lie in [-128, 127], int4 values in [-8, 7]. Scales must be
    exact in float16. Raises ValueError if `fits` is false.
    """
    rows, columns = matrix.values.shape
    if not fits(columns, form):
        raise ValueError(f"{columns} columns do not pack as {form}")
    panels, blocks = -(-rows // PANEL_ROWS), form.blocks_of(columns)
    packed = torch.empty((panels, blocks, block_bytes(form, form.block)), dtype=torch.uint8)
    weights_at = SCALE_BYTES + word_bytes(form)
    packed[:, :, :SCALE_BYTES].view(torch.float16).copy_(
        _filled(matrix.scales).view(panels, PANEL_ROWS, blocks).transpose(1, 2)
    )
    if matrix.multipliers is not None:
        multipliers = _filled(matrix.multipliers, blocks * form.block // form.group)
        words = _words(multipliers).view(panels, PANEL_ROWS, blocks, -1)
        places = packed[:, :, SCALE_BYTES:weights_at].unflatten(-1, (PANEL_ROWS, -1))
        places.copy_(words.transpose(1, 2))
    if matrix.zeros is not None:
        zeros = _filled(matrix.zeros).view(torch.uint8) + ZERO_POINTS[form.bits]
        packed[:, :, SCALE_BYTES:weights_at].copy_(
            zeros.view(panels, PANEL_ROWS, blocks).transpose(1, 2)
        )
    values = _filled(matrix.values, blocks * whole(form.block, STORED_TOGETHER[form.bits]))
    quads = _bytes(values, form.bits).view(panels, PANEL_ROWS, blocks, -1)
    weights = packed[:, :, weights_at:].view(torch.int32).unflatten(-1, (-1, PANEL_ROWS))
    for panel, source in zip(weights, quads.view(torch.int32), strict=True):
        panel.copy_(source.permute(1, 2, 0))
    # The last block ends with its last quads.
    return packed.view(panels, -1)[:, : panel_bytes(columns, form)].reshape(-1)


def _filled(rows: Tensor, columns: int = 0) -> Tensor:
    """Rows, filled up with zeros to a whole number of panels, and to so many columns."""
    below, beside = -rows.shape[0] % PANEL_ROWS, max(0, columns - rows.shape[1])
    return torch.nn.functional.pad(rows, (0, beside, 0, below)) if below or beside else rows


def _words(multipliers: Tensor) -> Tensor:
    """int8 [R, n] -> nibbles, uint8 [R, n / 2]."""
    nibbles: Tensor = multipliers.view(torch.uint8) & 15
    pairs: Tensor = nibbles.unflatten(-1, (-1, 2))
    return pairs[..., 0] | pairs[..., 1] << 4


def _bytes(values: Tensor, bits: int) -> Tensor:
    """Rows of int8 values as the unsigned bytes that are stored, k ascending in quads."""
    unsigned = values.contiguous().view(torch.uint8) + ZERO_POINTS[bits]
    if bits == 8:
        return unsigned
    low, high = unsigned.view(len(values), -1, 2, HALF_BLOCK).unbind(2)
    return (low | high << 4).view(len(values), -1)
