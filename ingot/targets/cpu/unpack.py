"""Reads packed weights, and what kernels have stored, back into plain tensors.

The inverse of pack.py, and of the layout of kernels/cache.h: for those who
look into a model, never for a step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ingot.artifact.formats import BYTE, CODED, SIX_BITS, Format
from ingot.artifact.plan import Buffer, Plan
from ingot.ops.dtypes import TORCH_DTYPES
from ingot.ops.scaled import Operand, Scaled, stack
from ingot.targets.cpu.generate import weight_layouts
from ingot.targets.cpu.weights import (
    BYTE_OFFSET,
    HALF_BLOCK,
    MULTIPLIER_OFFSET,
    NARROW_COLUMNS,
    PANEL_COLUMNS,
    PANEL_ROWS,
    QUAD,
    SCALE_BYTES,
    SIX_BITS_BYTES,
    SIX_BITS_TOGETHER,
    ZERO_POINTS,
    WeightLayout,
    block_bytes,
    blocks_together,
    multipliers_at,
    num_bytes,
    panel_bytes,
    weights_at,
    zero_point,
    zeros_at,
)
from ingot.targets.target import Packed, Weights

KEY_GROUP = 16
WORD_BYTES = 4  # numbers of a column that lie together


def unpacked(plan: Plan, packed: Packed) -> Weights:
    """Gives each weight of a plan; `packed` gives its bytes by name, with what fills them up."""
    layouts = {layout.name: layout for layout in weight_layouts(plan)}

    def weight(buffer: Buffer) -> Operand:
        layout = layouts[buffer.name]
        if layout.is_stack:
            return unpack_stack(layout, packed(buffer.name))
        return unpack(layout, packed(buffer.name)[: num_bytes(layout)])

    return weight


def unpack_stack(layout: WeightLayout, data: Tensor) -> Operand:
    """A stack from the bytes of each of its matrices, uint8 [E, bytes]."""
    half = num_bytes(layout.half)
    halves = [
        unpack(layout.half, matrix[first : first + half]) for matrix in data for first in (0, half)
    ]
    if isinstance(halves[0], Scaled):
        return stack([h for h in halves if isinstance(h, Scaled)]).unflatten(layout.shape[:2])
    return torch.cat([h for h in halves if isinstance(h, Tensor)]).view(layout.shape)


def unpack(layout: WeightLayout, data: Tensor) -> Operand:
    """A weight from its bytes, uint8."""
    if layout.format.is_scaled:
        return unpack_quantized(data, layout.shape, layout.format)
    numbers = data.view(TORCH_DTYPES[layout.format.dtype])
    if layout.layout == "rows":
        return numbers.view(layout.shape)
    return unpack_panels(numbers, layout.shape)


def unpack_panels(numbers: Tensor, shape: Sequence[int]) -> Tensor:
    """The inverse of `pack_panels`."""
    outputs, inputs = shape
    depth = WORD_BYTES // numbers.itemsize
    steps = -(-inputs // depth)
    whole = outputs // PANEL_COLUMNS * PANEL_COLUMNS
    panels = numbers[: whole * steps * depth].view(-1, steps, PANEL_COLUMNS, depth)
    parts = [panels.transpose(1, 2).reshape(whole, steps * depth)]
    if rest := outputs - whole:
        columns = -(-rest // NARROW_COLUMNS) * NARROW_COLUMNS
        last = numbers[whole * steps * depth :].view(steps, columns, depth)
        parts.append(last.transpose(0, 1).reshape(columns, steps * depth)[:rest])
    return torch.cat(parts)[:, :inputs]


def unpack_quantized(data: Tensor, shape: Sequence[int], form: Format) -> Scaled:
    """The inverse of `pack_quantized`."""
    rows, columns = shape
    together = blocks_together(form)
    blocks, size = -(-columns // (form.block * together)), block_bytes(form, form.block * together)
    panels = data.view(-1, panel_bytes(columns, form))
    missing = blocks * size - panels.shape[1]
    packed = torch.nn.functional.pad(panels, (0, missing)).view(-1, blocks, size)
    scales, minimums = (
        _by_group(
            packed[:, :, first * SCALE_BYTES : (first + together) * SCALE_BYTES].view(torch.float16)
        )
        for first in (0, together)
    )
    groups = -(-columns // form.group)
    multipliers, zeros = (
        None if part is None else part[:rows, :groups] for part in _unpack_groups(packed, form)
    )
    if form.zeros and not form.minimums:
        assert zeros is not None
        zeros = _zeros(zeros, multipliers, form.bits)
    quads = packed[:, :, weights_at(form) :].unflatten(-1, (-1, PANEL_ROWS, QUAD))
    stored = quads.permute(0, 3, 1, 2, 4).flatten(0, 1).flatten(1)[:rows]
    values = _values(stored, form)[:, :columns]
    scales, minimums = (s[:rows, : form.blocks_of(columns)].float() for s in (scales, minimums))
    return Scaled(
        values,
        multipliers,
        scales,
        zeros,
        minimums if form.minimums else None,
        block=form.block,
        group=form.group,
    )


def _unpack_groups(packed: Tensor, form: Format) -> tuple[Tensor | None, Tensor | None]:
    """The multipliers and the stored zeros in blocks of panels, [R, n] each."""
    first, second, end = multipliers_at(form), zeros_at(form), weights_at(form)
    own, multipliers = packed[:, :, first:second], None
    if form.multiplier == SIX_BITS:
        return _six_bits(own.unflatten(-1, (-1, SIX_BITS_BYTES)))
    if form.multiplier == BYTE:
        multipliers = (_by_group(own) - BYTE_OFFSET).view(torch.int8)
    elif form.has_multipliers:
        words = own.unflatten(-1, (PANEL_ROWS, -1))
        nibbles = torch.stack((words & 15, words >> 4), -1).flatten(-2)
        found = nibbles.transpose(1, 2).flatten(2).flatten(0, 1)
        multipliers = _signed(found) + form.zeros * MULTIPLIER_OFFSET
    return multipliers, _by_group(packed[:, :, second:end]) if end > second else None


def _by_group(places: Tensor) -> Tensor:
    """[panels, blocks, n * 32], in which first come those of one group in every row -> [R, n]."""
    by_group: Tensor = places.unflatten(-1, (-1, PANEL_ROWS))
    return by_group.permute(0, 3, 1, 2).flatten(2).flatten(0, 1)


def _six_bits(places: Tensor) -> tuple[Tensor, Tensor]:
    """Multipliers and zeros in [panels, blocks, n, bytes of four groups] -> [R, groups] each."""
    size = PANEL_ROWS * SIX_BITS_TOGETHER
    lower, upper = (
        part.unflatten(-1, (PANEL_ROWS, -1, 1)) for part in places.split((size, size // 2), -1)
    )
    low = lower >> torch.tensor([0, 4], dtype=torch.uint8) & 15
    high = upper >> torch.arange(0, 8, 2, dtype=torch.uint8) & 3
    fields = low.flatten(-2) | high.flatten(-2) << 4
    parts = fields.permute(0, 3, 1, 2, 4).unflatten(-1, (2, 2, 2))  # odd groups, m, second pair
    zeros, multipliers = (
        parts[..., which, :].transpose(-1, -2).flatten(2).flatten(0, 1).view(torch.int8)
        for which in range(2)
    )
    return multipliers, zeros


def _zeros(stored: Tensor, multipliers: Tensor | None, bits: int) -> Tensor:
    """Zeros from the bytes that are taken off unsigned values times their multipliers."""
    if multipliers is None:
        return _less(stored, bits)
    whole = stored.short() - 128 - multipliers.short() * ZERO_POINTS[bits]
    return whole.to(torch.int8)


def _values(stored: Tensor, form: Format) -> Tensor:
    """Rows of unsigned bytes -> int8 values, k ascending."""
    bits = form.bits
    if bits < 8:
        parts = stored.view(len(stored), -1, bits * QUAD)  # of 32 k
        halves, above = parts.split((HALF_BLOCK, (bits - 4) * QUAD), -1)
        lower = torch.cat((halves & 15, halves >> 4), -1)
        stored = (lower | _bits_above(above, bits)).flatten(1)
    if form.codes:
        return torch.tensor(CODED, dtype=torch.int8)[stored.int()]
    return (stored.to(torch.int16) - zero_point(form)).to(torch.int8)


def _bits_above(stored: Tensor, bits: int) -> Tensor:
    """The bits above the lower 4 of values, in their place: uint8 [R, parts, 32], or 0."""
    if bits == 4:
        return torch.zeros(1, dtype=torch.uint8)
    more = bits - 4
    shifts = torch.arange(0, 8, more, dtype=torch.uint8)[:, None]
    quads: Tensor = stored.unflatten(-1, (-1, 1, QUAD)) >> shifts & (1 << more) - 1
    return quads.flatten(-3) << 4


def _less(unsigned: Tensor, bits: int) -> Tensor:
    """Unsigned bytes as the integers that they stand for, int8."""
    return (unsigned.to(torch.int16) - ZERO_POINTS[bits]).to(torch.int8)


def _signed(nibbles: Tensor) -> Tensor:
    """Nibbles in two's complement, uint8 -> int8."""
    values = nibbles.to(torch.int8)
    return torch.where(values > 7, values - 16, values)


def unpack_state(plan: Plan, state: Buffer, arrays: Sequence[Tensor]) -> Operand:
    """Unpacks the arrays of keys or values to [pages, heads, page size, size], or of records to
    [slots, heads, size], by copy.

    `arrays` are its numbers, and its scales where it has some, in any shape.
    """
    numbers = arrays[0].view(TORCH_DTYPES[state.dtype])
    if len(state.shape) == 3:  # a record is stored as it is
        return numbers.view(-1, *map(int, state.shape[1:])).clone()
    _, heads, page_size, size = map(int, state.shape)
    order = _inner(plan, state)
    stored = _offset(numbers, order).view(-1, heads, *order)
    values = stored.transpose(3, 4).reshape(-1, heads, page_size, size).clone()
    if not state.format.is_scaled:
        return values
    scales = arrays[1].view(torch.float32).view(-1, heads, page_size, size // state.format.block)
    return Scaled(values, None, scales.clone())


def pack_state(plan: Plan, state: Buffer, value: Operand) -> list[Tensor]:
    """The inverse of `unpack_state`: the arrays as kernels store them."""
    heads = int(state.shape[1])
    numbers = value.values if isinstance(value, Scaled) else value
    order = _inner(plan, state)
    groups, outer, inner, *depth = order
    there = numbers.view(-1, heads, groups, inner, outer, *depth)
    packed = _offset(there.transpose(3, 4).contiguous(), order)
    return [packed, value.scales] if isinstance(value, Scaled) else [packed]


def _inner(plan: Plan, state: Buffer) -> tuple[int, ...]:
    """The order of the elements of a (page, head)."""
    if len(state.shape) == 3:  # a record is stored as it is
        return 1, 1, int(state.shape[-1])
    _, _, page_size, size = map(int, state.shape)
    word = WORD_BYTES // TORCH_DTYPES[state.dtype].itemsize
    readers = (i for i in plan.instructions if i.inputs.get("k_cache") == state.name)
    keys = next(readers, None)
    if keys is None:
        depth = 1 if state.format.is_scaled else word
        return page_size // depth, size, depth
    if "v_cache" not in keys.inputs:  # rows as they are
        return page_size, 1, size
    return page_size // KEY_GROUP, size // word, KEY_GROUP, word


def _offset(numbers: Tensor, order: Sequence[int]) -> Tensor:
    """Integers as bytes of value + 128 where they are keys in quads, and the other way round."""
    is_quads = numbers.dtype == torch.int8 and len(order) == 4
    return numbers ^ -128 if is_quads else numbers
