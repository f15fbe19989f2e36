"""Layout of weights in their file, and the bytes that they take. No torch.

pack.py writes them so.

The weight W [O, K] of a linear is stored as ceil(O / 64) panels of 64 output features. A panel is
[ceil(K / 2)][64][2] in bfloat16, filled up with zeros if K is odd, or [K][64] in float32. The last
panel is only as wide as the multiple of 16 that covers the features left. So a thread reads its
features in one sequential stream, a vector register at a time. All x86-64 levels share this layout.

In integers it becomes panels of 32 rows, and a panel is ceil(K / block) blocks. A block has

    scales        a line of 64 bytes: the float16 scales of the 32 rows. Two blocks of 16 k in fewer
                  than 8 bits lie together: first their scales, then their zeros, then 32 k
    minimums      if the format has them: another such line
    multipliers   if the block has several groups
        4 bits    a word of one or two bytes for every row, with the multipliers as nibbles in two's
                  complement, the first group in the lowest; where there are zeros, each less 9
        6 bits    with the zeros z beside them, for every 4 groups: a word of 4 bytes for every row,
                  and then one of 2 bytes. From the lowest bits on these have the lower 4 bits, and
                  the 2 above, of z of groups 0 and 2, m of 0 and 2, z of 1 and 3, m of 1 and 3
        8 bits    for every group a byte of every row, plus 128
    zeros         if the format has them, and no minimums: for every group a byte of every row, so
                  that a weight is its unsigned byte or nibble times the multiplier, less that;
                  beside multipliers plus 128
    weights       unsigned bytes in quads, which are four neighbouring k of one row
        int8      [block / 4][32 rows][4 k], value + 128; beside minimums, values are unsigned
                  in all bits, and codes are what int4 stores of them
        int4      for every 32 k: [4][32 rows][4 k], value + 8. At step j the low nibble is
                  k = 4 j + i, and the high one k = 16 + 4 j + i
        int5, int6   for every 32 k: the lower 4 bits of value + 16 or + 32 as in int4, and then
                  [1 or 2][32 rows][4 bytes] with the bits above them: byte i has those of
                  k = i, 4 + i, 8 + i .., the first in the lowest bits

So a thread reads its rows in one sequential stream, and a vector register holds a quad of 16 rows.
Rows with scales of 0 fill up the last panel. The last block of a panel ends with its last quads: of
its columns there are as many as the row has, filled up with zeros to a quad, or in fewer than 8
bits to 32. All levels of instructions share this layout.

A stack [E, O, K] is stored matrix by matrix. Each is two halves of its rows, packed as matrices of
their own, so that of a gate and what it gates each begins with a panel. Stacks of one module share
a tensor of the file: what belongs to one index lies together, each matrix from a page on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from ingot.artifact.formats import BYTE, NIBBLE, SIX_BITS, DType, Format, stored_bytes
from ingot.artifact.plan import Buffer, Plan
from ingot.artifact.tensors import PAGE
from ingot.targets.stacks import with_stacks as placed_stacks

PANEL_COLUMNS = 64
NARROW_COLUMNS = 16
WORD_BYTES = 4  # of neighbouring k, which travel together
PANEL_ROWS = 32
SCALE_BYTES = 2 * PANEL_ROWS
QUAD = 4  # k that lie together
HALF_BLOCK = 16  # k between the two nibbles of a byte
TOGETHER = 2 * HALF_BLOCK
STORED_TOGETHER = {8: QUAD, 6: TOGETHER, 5: TOGETHER, 4: TOGETHER}  # columns, by bits
ZERO_POINTS = {bits: 1 << (bits - 1) for bits in STORED_TOGETHER}
MULTIPLIER_OFFSET = 9  # of what is stored beside zeros: 1..16 becomes -8..7
BYTE_OFFSET = 128  # of multipliers of 8 bits
SIX_BITS_TOGETHER = 4  # groups whose multipliers and zeros of 6 bits lie together
SIX_BITS_BYTES = PANEL_ROWS * SIX_BITS_TOGETHER * 2 * SIX_BITS // 8  # of these

Layout = Literal["rows", "panels", "integer-panels"]


@dataclass(frozen=True, slots=True)
class WeightLayout:
    """Layout of a weight, as the packer stores it.

    rows          rows as they are
    panels        panels of 64 columns of a linear
    integer-panels   panels of 32 columns, with multipliers, zeros and scales in between
    """

    name: str
    layout: Layout
    format: Format
    shape: tuple[int, ...]

    @property
    def is_stack(self) -> bool:
        return len(self.shape) == 3

    @property
    def half(self) -> WeightLayout:
        """Half of a matrix of a stack."""
        _, outputs, inputs = self.shape
        return replace(self, shape=(outputs // 2, inputs))


def layout_of(weight: Buffer, *, multiplied: bool) -> WeightLayout:
    """The layout of a weight; `multiplied` says that a product reads it."""
    kind: Layout = "panels" if multiplied else "rows"
    if weight.format.is_scaled:
        kind = "integer-panels"
    return WeightLayout(weight.name, kind, weight.format, tuple(map(int, weight.shape)))


def stored_dtype(weight: WeightLayout) -> DType:
    """The dtype that the file gives a weight: bytes where integers and scales lie in panels."""
    return "int8" if weight.format.is_scaled else weight.format.dtype


def num_bytes(weight: WeightLayout) -> int:
    """Bytes of the packed weight, before the tensor is padded to 64 bytes."""
    if weight.is_stack:
        return weight.shape[0] * paged(2 * num_bytes(weight.half))
    if weight.format.is_scaled:
        outputs, inputs = weight.shape
        return packed_bytes(outputs, inputs, weight.format)
    return stored_bytes(weight.format.dtype, num_elements(weight))


def paged(nbytes: int) -> int:
    """The next multiple of a page."""
    return -(-nbytes // PAGE) * PAGE


def with_stacks(plan: Plan, weights: Iterable[WeightLayout]) -> Plan:
    """The plan with the place of every stack in its tensor."""
    stacks = [weight for weight in weights if weight.is_stack]
    return placed_stacks(plan, {s.name: num_bytes(s) // s.shape[0] for s in stacks})


def num_elements(weight: WeightLayout) -> int:
    """Elements of a packed weight that is not quantized."""
    if weight.layout == "rows":
        return math.prod(weight.shape)
    outputs, inputs = weight.shape
    depth = WORD_BYTES // stored_bytes(weight.format.dtype, 1)
    columns = -(-outputs // NARROW_COLUMNS) * NARROW_COLUMNS
    return columns * -(-inputs // depth) * depth


def block_bytes(form: Format, columns: int) -> int:
    """Bytes of a block of a panel of integers, or of those together, that has so many columns."""
    weights = PANEL_ROWS * whole(columns, STORED_TOGETHER[form.bits]) * form.bits // 8
    return weights_at(form) + weights


def blocks_together(form: Format) -> int:
    """Blocks of a format that lie together, as their weights share bytes."""
    halves = form.bits < 8 and form.block == HALF_BLOCK and not form.is_two_level
    return TOGETHER // HALF_BLOCK if halves else 1


def zero_point(form: Format) -> int:
    """What stored values are more than those that they stand for."""
    return 0 if form.minimums else ZERO_POINTS[form.bits]


def multipliers_at(form: Format) -> int:
    """Offset of the multipliers in a block."""
    return SCALE_BYTES * (blocks_together(form) + form.minimums)


def zeros_at(form: Format) -> int:
    """Offset of the zeros in a block."""
    bits = 2 * SIX_BITS if form.multiplier == SIX_BITS else form.multiplier
    multipliers = PANEL_ROWS * groups_together(form) * bits // 8
    return multipliers_at(form) + multipliers * form.has_multipliers


def weights_at(form: Format) -> int:
    """Offset of the weights in a block."""
    apart = form.zeros and not form.minimums
    return zeros_at(form) + PANEL_ROWS * groups_together(form) * apart


def groups_together(form: Format) -> int:
    """Groups of a block, or of those that lie together."""
    return blocks_together(form) * form.block // form.group


def panel_bytes(columns: int, form: Format) -> int:
    """Bytes of a panel of integers."""
    size = form.block * blocks_together(form)
    before = -(-columns // size) - 1
    return before * block_bytes(form, size) + block_bytes(form, columns - before * size)


def packed_bytes(rows: int, columns: int, form: Format) -> int:
    """Bytes of a packed weight [rows, columns] in integers."""
    return -(-rows // PANEL_ROWS) * panel_bytes(columns, form)


def whole(count: int, step: int) -> int:
    """The next multiple of a step."""
    return -(-count // step) * step


def fits(columns: int, form: Format) -> bool:
    """Returns whether a row of that many columns can be packed in that format."""
    if form.bits not in ZERO_POINTS or form.block not in (n * form.group for n in _groups(form)):
        return False
    together = STORED_TOGETHER[form.bits]
    if blocks_together(form) > 1 or (form.multiplier != NIBBLE and form.block % together == 0):
        together = HALF_BLOCK
    return form.group % together == 0 or form.group >= columns


def _groups(form: Format) -> tuple[int, ...]:
    """The numbers of groups that a block of a format may have."""
    if form.codes and (form.bits != 4 or form.zeros or form.minimums):
        return ()
    if form.multiplier == SIX_BITS:
        return (4, 8) if form.bits in (4, 5) and form.zeros and form.minimums else ()
    if form.multiplier == BYTE:
        return () if form.bits == 8 or form.zeros or form.minimums else (2, 4, 8)
    if form.minimums or form.codes:
        return (1,) if form.bits in (4, 5) and not form.zeros else ()
    return (1, 2, 4) if form.bits == 4 or (form.bits < 8 and form.zeros) else (1,)
