"""How weights in int8 and int4 are stored: the bytes that `kernels/quantized_panels.h` reads.

W [O, K], a Scaled, becomes panels of 32 rows, and a panel is K / block blocks. A block has

    scales        a line of 64 bytes: the float16 scales of the 32 rows
    multipliers   if the block has 2 or 4 groups: a word of one or two bytes for every row, with the
                  multipliers as nibbles in two's complement, the first group in the lowest
    weights       unsigned bytes in quads, which are four neighbouring k of one row
        int8      [block / 4][32 rows][4 k], value + 128
        int4      for every 32 k: [4][32 rows][4 k], value + 8. At step j the low nibble is
                  k = 4 j + i, and the high one k = 16 + 4 j + i

So a thread reads its rows in one sequential stream, and a vector register holds a quad of 16 rows.
Rows with scales of 0 fill up the last panel. All levels of instructions share this layout.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.artifact.formats import Format
from ingot.ops.scaled import Scaled

PANEL_ROWS = 32
SCALE_BYTES = 2 * PANEL_ROWS
QUAD = 4  # k that lie together
HALF_BLOCK = 16  # k between the two nibbles of a byte
ZERO_POINTS = {8: 128, 4: 8}


def block_bytes(form: Format) -> int:
    """Bytes of one block of a panel."""
    return SCALE_BYTES + _multiplier_bytes(form) + PANEL_ROWS * form.block * form.bits // 8


def _multiplier_bytes(form: Format) -> int:
    return PANEL_ROWS * form.block // form.group // 2 if form.has_multipliers else 0


def packed_bytes(rows: int, columns: int, form: Format) -> int:
    """Bytes of a packed weight [rows, columns]."""
    return -(-rows // PANEL_ROWS) * (columns // form.block) * block_bytes(form)


def fits(columns: int, form: Format) -> bool:
    """Whether a row of that many columns can be packed in that format."""
    smallest = 2 * HALF_BLOCK if form.bits == 4 else QUAD
    many = (1, 2, 4) if form.bits == 4 else (1,)
    whole = form.group % smallest == 0 and columns % form.block == 0
    return form.bits in ZERO_POINTS and whole and form.block in (n * form.group for n in many)


def pack_quantized(matrix: Scaled, form: Format) -> Tensor:
    """A matrix -> its panels, uint8, 1-D.

    The rows start a panel. int8 values lie in [-127, 127], int4 values in [-8, 7]. Scales must be
    exact in float16. Raises ValueError if `fits` is false.
    """
    rows, columns = matrix.values.shape
    if not fits(columns, form):
        raise ValueError(f"{columns} columns do not pack as {form}")
    panels, blocks = -(-rows // PANEL_ROWS), columns // form.block
    packed = torch.empty((panels, blocks, block_bytes(form)), dtype=torch.uint8)
    weights_at = SCALE_BYTES + _multiplier_bytes(form)
    packed[:, :, :SCALE_BYTES].view(torch.float16).copy_(
        _filled(matrix.scales).view(panels, PANEL_ROWS, blocks).transpose(1, 2)
    )
    if matrix.multipliers is not None:
        words = _words(_filled(matrix.multipliers)).view(panels, PANEL_ROWS, blocks, -1)
        places = packed[:, :, SCALE_BYTES:weights_at].unflatten(-1, (PANEL_ROWS, -1))
        places.copy_(words.transpose(1, 2))
    quads = _bytes(_filled(matrix.values), form.bits).view(panels, PANEL_ROWS, blocks, -1)
    weights = packed[:, :, weights_at:].view(torch.int32).unflatten(-1, (-1, PANEL_ROWS))
    for panel, source in zip(weights, quads.view(torch.int32), strict=True):
        panel.copy_(source.permute(1, 2, 0))
    return packed.view(-1)


def _filled(rows: Tensor) -> Tensor:
    """Rows, filled up with zeros to a whole number of panels."""
    missing = -rows.shape[0] % PANEL_ROWS
    return torch.nn.functional.pad(rows, (0, 0, 0, missing)) if missing else rows


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
