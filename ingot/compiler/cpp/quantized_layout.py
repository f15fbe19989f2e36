"""How weights in int8 and int4 are stored: the bytes that `kernels/quantized_panels.h` reads.

W [O, K] with a float16 scale for every row and group of k becomes panels of 32 rows, each of
K / group groups. A group is one line of 64 bytes, the scales of the 32 rows, and its weights as
unsigned bytes in quads, four neighbouring k of one row:

    int8   [group / 4][32 rows][4 k], value + 128
    int4   for every 32 k: [4][32 rows][4 k], value + 8: at step j the low nibble is
           k = 4 j + i and the high one k = 16 + 4 j + i

So a thread reads its rows in one sequential stream of whole lines, and a vector register holds a
quad of 16 rows. The last panel is filled up with rows whose scales are 0. All levels of
instructions share this layout.
"""

from __future__ import annotations

import torch
from torch import Tensor

PANEL_ROWS = 32
SCALE_BYTES = 2 * PANEL_ROWS
QUAD = 4  # k that travel together
HALF_BLOCK = 16  # k between the two nibbles of a byte
ZERO_POINTS = {8: 128, 4: 8}


def group_bytes(bits: int, group: int) -> int:
    """Bytes of one group of a panel."""
    return SCALE_BYTES + PANEL_ROWS * group * bits // 8


def packed_bytes(rows: int, columns: int, bits: int, group: int) -> int:
    """Bytes of a packed weight [rows, columns]."""
    return -(-rows // PANEL_ROWS) * (columns // group) * group_bytes(bits, group)


def fits(columns: int, bits: int, group: int) -> bool:
    """Whether a row of that many columns can be packed in groups of that size."""
    smallest = 2 * HALF_BLOCK if bits == 4 else QUAD
    return bits in ZERO_POINTS and group % smallest == 0 and columns % group == 0


def pack_quantized(values: Tensor, scales: Tensor, *, bits: int, group: int) -> Tensor:
    """values int8 [rows, K] and scales [rows, K / group] -> their panels, uint8, 1-D.

    The rows start a panel. int8 values lie in [-127, 127], int4 values in [-8, 7]; scales must be
    representable in float16. Raises ValueError where `fits` is false.
    """
    rows, columns = values.shape
    if not fits(columns, bits, group):
        raise ValueError(f"{columns} columns do not pack into groups of {group} int{bits}")
    missing = -rows % PANEL_ROWS
    if missing:
        values = torch.nn.functional.pad(values, (0, 0, 0, missing))
        scales = torch.nn.functional.pad(scales, (0, 0, 0, missing))
    panels, groups = len(values) // PANEL_ROWS, columns // group
    packed = torch.empty((panels, groups, group_bytes(bits, group)), dtype=torch.uint8)
    packed[:, :, :SCALE_BYTES].view(torch.float16).copy_(
        scales.view(panels, PANEL_ROWS, groups).transpose(1, 2)
    )
    quads = _bytes(values, bits).view(panels, PANEL_ROWS, groups, -1).view(torch.int32)
    weights = packed[:, :, SCALE_BYTES:].view(torch.int32)
    for panel, source in zip(weights.view(panels, groups, -1, PANEL_ROWS), quads, strict=True):
        panel.copy_(source.permute(1, 2, 0))
    return packed.view(-1)


def _bytes(values: Tensor, bits: int) -> Tensor:
    """Rows of int8 values as the unsigned bytes that are stored, k ascending in quads."""
    unsigned = values.contiguous().view(torch.uint8) + ZERO_POINTS[bits]
    if bits == 8:
        return unsigned
    low, high = unsigned.view(len(values), -1, 2, HALF_BLOCK).unbind(2)
    return (low | high << 4).view(len(values), -1)
