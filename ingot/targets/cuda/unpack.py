"""Reads packed weights, and what kernels have stored, back into plain tensors.

The inverse of pack.py, for those who look into a model, never for a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ingot.artifact.formats import CODED, Format
from ingot.artifact.plan import Buffer
from ingot.ops.dtypes import TORCH_DTYPES
from ingot.ops.scaled import Operand, Scaled, stack
from ingot.targets.cuda.weights import (
    UNIT,
    groups_of,
    high_bits,
    is_stack,
    layout_of,
    least_multiplier,
    least_value,
    nbytes_of,
    tile_columns,
    zero_bytes,
)
from ingot.targets.target import Packed, Weights


def unpacked(packed: Packed) -> Weights:
    """Gives each weight of a plan; `packed` gives its bytes by name, with what fills them up."""

    def weight(buffer: Buffer) -> Operand:
        data = packed(buffer.name)
        if is_stack(buffer):
            return unpack_stack(buffer, data)
        return unpack(buffer, data[: nbytes_of(buffer)])

    return weight


def unpack_stack(weight: Buffer, data: Tensor) -> Operand:
    """A stack from the bytes of each of its matrices, uint8 [E, bytes]."""
    matrix = replace(weight, shape=weight.shape[1:])
    found = [unpack(matrix, each[: nbytes_of(matrix)]) for each in data]
    if isinstance(found[0], Scaled):
        shape = [*map(int, weight.shape[:2])]
        return stack([m for m in found if isinstance(m, Scaled)]).unflatten(shape)
    return torch.stack([m for m in found if isinstance(m, Tensor)])


def unpack(weight: Buffer, data: Tensor) -> Operand:
    """A weight from its bytes, uint8."""
    shape = tuple(map(int, weight.shape))
    form = weight.format
    if not form.is_scaled:
        return data.view(TORCH_DTYPES[weight.dtype]).view(shape)
    rows, columns = shape
    layout, tile = layout_of(rows, columns, form), tile_columns(columns, form)
    stored = data[: rows * layout.row_bytes].view(rows, -1)
    if form.bits == 8:
        values = _by_column(stored, min(UNIT, tile)).view(torch.int8)
    else:
        pairs = _by_column(stored, min(UNIT, tile // 2)).view(rows, -1, tile // 2)
        halves = torch.cat((pairs & 15, pairs >> 4), -1)
        if high_bits(form):
            halves |= _high(data[layout.high :], rows, columns, form) << 4
        elif not form.is_two_level:
            halves[..., tile // 2 :] ^= 8  # two's complement
        values = _values(halves.flatten(1), form)
    scales = data[layout.scales :].contiguous().view(torch.float16).view(-1, rows).T.float()
    scales, *minimums = scales.contiguous().split(form.blocks_of(columns), -1)
    multipliers, zeros = _of_groups(data, rows, columns, form)
    return Scaled(
        values[:, :columns], multipliers, scales, zeros, *minimums,
        block=form.block, group=form.group,
    )  # fmt: skip


def _values(unsigned: Tensor, form: Format) -> Tensor:
    """What is stored from 0 on, uint8, as values."""
    if form.codes:
        return torch.tensor(CODED, dtype=torch.int8)[unsigned.int()]
    return unsigned.view(torch.int8) + least_value(form)


def _high(data: Tensor, rows: int, columns: int, form: Format) -> Tensor:
    """The high bits of a matrix, uint8 [rows, tiles, columns of a tile], from the bytes that
    begin with them."""
    tile, bits = tile_columns(columns, form), high_bits(form)
    tiles = -(-columns // tile)
    stored = data[: rows * tiles * tile * bits // 8].view(tiles, rows, -1).transpose(0, 1)
    parts = [stored >> 2 * bits * place for place in range(4 // bits)]
    pairs = _by_column(torch.cat(parts, -1).flatten(1), min(UNIT, tile // 2))
    pairs = pairs.view(rows, tiles, tile // 2)
    mask = (1 << bits) - 1
    return torch.cat((pairs & mask, pairs >> bits & mask), -1)


def _of_groups(
    data: Tensor, rows: int, columns: int, form: Format
) -> tuple[Tensor | None, Tensor | None]:
    """The multipliers and the zeros of a matrix, int8 [rows, groups]."""
    layout = layout_of(rows, columns, form)
    multipliers, zeros = data[layout.multipliers :], data[layout.zeros :]
    if form.is_two_level and form.has_multipliers:
        return _of_pairs(multipliers, zeros, rows, columns, form)
    return _multipliers(multipliers, rows, columns, form), _zeros(zeros, rows, columns, form)


def _of_pairs(
    low: Tensor, beyond: Tensor, rows: int, columns: int, form: Format
) -> tuple[Tensor, Tensor | None]:
    """The same where two groups share 16 bits, and if they have zeros a byte beyond these."""
    count, width = groups_of(columns, form) // 2 * rows, form.multiplier
    bits = low[: 2 * count].contiguous().view(torch.int16).int() & 0xFFFF
    if form.zeros:
        bits |= beyond[:count].int() << 16
    places = width * torch.arange(4 if form.zeros else 2, dtype=torch.int32)
    fields = (bits[:, None] >> places & (1 << width) - 1).to(torch.uint8).view(torch.int8)
    by_row = fields.view(-1, rows, len(places) // 2, 2).permute(2, 1, 0, 3).flatten(2)
    multipliers, *zeros = by_row[..., : -(-columns // form.group)]
    return multipliers, next(iter(zeros), None)


def _multipliers(data: Tensor, rows: int, columns: int, form: Format) -> Tensor | None:
    """The multipliers of a matrix, int8 [rows, groups], from the bytes that begin with them."""
    if not form.has_multipliers:
        return None
    half = tile_columns(columns, form) // form.group // 2
    tiles = data[: rows * groups_of(columns, form) // 2].view(-1, rows, half)
    nibbles = torch.cat((tiles & 15, tiles >> 4), -1).to(torch.int8)
    found = nibbles.transpose(0, 1).flatten(1) + least_multiplier(form)
    return found[:, : -(-columns // form.group)]


def _zeros(data: Tensor, rows: int, columns: int, form: Format) -> Tensor | None:
    """The zeros of a matrix, int8 [rows, groups], from the bytes that begin with them."""
    if not form.zeros:
        return None
    stored = data[: rows * zero_bytes(columns, form)].view(torch.int8)
    if not form.has_multipliers:
        return stored.view(-1, rows).T.contiguous()
    half = tile_columns(columns, form) // form.group // 2
    halves = stored.view(-1, rows, half, 2).permute(1, 0, 3, 2)
    return halves.flatten(1)[:, : -(-columns // form.group)]


def _by_column(rows: Tensor, unit: int) -> Tensor:
    """Bytes in the order of memory -> in that of their columns."""
    lanes = rows.view(len(rows), -1, 4, unit // 16, 2, 2)
    return lanes.permute(0, 1, 3, 4, 2, 5).flatten(1)


def unpack_state(state: Buffer, arrays: Sequence[Tensor]) -> Operand:
    """Unpacks the arrays of keys or values to [pages, heads, page size, size], by copy."""
    _, heads, page_size, size = map(int, state.shape)
    values = arrays[0].view(TORCH_DTYPES[state.dtype]).view(-1, heads, page_size, size).clone()
    if not state.format.is_scaled:
        return values
    return Scaled(values, None, arrays[1].view(torch.float32).view(-1, heads, page_size, 1).clone())
