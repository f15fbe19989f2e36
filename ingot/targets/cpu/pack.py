"""Packs the weights of a plan into one safetensors file, in pieces, and stacks matrix by matrix.

`weights` says how they lie there. Those in integers become the bytes that
`kernels/quantized_panels.h` reads.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from ingot.artifact.formats import BYTE, CODED, SIX_BITS, Format, stored_bytes
from ingot.artifact.plan import Plan
from ingot.artifact.tensors import ALIGNMENT, PAGE, header, in_file
from ingot.errors import InternalError
from ingot.ops.dtypes import TORCH_DTYPES
from ingot.ops.scaled import Scaled, stack
from ingot.ops.stacks import matrix_name
from ingot.targets.chunked_file import ChunkedFile
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
    STORED_TOGETHER,
    TOGETHER,
    WORD_BYTES,
    ZERO_POINTS,
    WeightLayout,
    block_bytes,
    blocks_together,
    fits,
    groups_together,
    multipliers_at,
    num_bytes,
    panel_bytes,
    stored_dtype,
    weights_at,
    whole,
    zero_point,
    zeros_at,
)
from ingot.targets.stacks import modules_of
from ingot.targets.target import Read, ScaledWeights

PIECE_BYTES = 16 << 20
THREADS = 2  # both pack while the caller's thread reads and writes
PIECES_AHEAD = 4

Rowed = TypeVar("Rowed", Tensor, Scaled)


def pack(
    path: Path,
    plan: Plan,
    weights: tuple[WeightLayout, ...],
    read: Read,
    integers: ScaledWeights,
) -> None:
    """Writes the file of all weights: 1-D tensors under the plan's names, 64-byte aligned.

    `read` gives a source parameter on the CPU, in any floating dtype. The system may drop what it
    returned from memory once it is called again, but it must stay readable. `integers` gives the
    parameters that the plan has in integers.
    """
    sources = {buffer.name: buffer.sources or (buffer.name,) for buffer in plan.of_kind("weight")}
    with (
        path.open("wb", buffering=0) as raw,
        ChunkedFile(raw) as file,
        ThreadPoolExecutor(THREADS) as pool,
    ):
        stacks = {weight.name: weight for weight in weights if weight.is_stack}
        sizes = {weight.name: (stored_dtype(weight), num_bytes(weight)) for weight in weights}
        file.write(header(in_file(sizes, stacks), PAGE if stacks else ALIGNMENT))
        pieces = Pieces(file, pool)
        for together in modules_of(stacks).values():
            for index in range(stacks[together[0]].shape[0]):
                for stack in map(stacks.__getitem__, together):
                    pieces.write(_matrix_jobs(stack, index, read, integers), PAGE)
        for weight in weights:
            if not weight.is_stack:
                pieces.write(_jobs(weight, sources[weight.name], read, integers), ALIGNMENT)


@dataclass(frozen=True)
class Pieces:
    """Writes what jobs give, in their order, while others run ahead."""

    file: ChunkedFile
    pool: ThreadPoolExecutor

    def write(self, jobs: Iterable[Callable[[], Tensor]], alignment: int) -> None:
        """Fills up with zeros to a multiple of `alignment`."""
        written = 0
        for piece in _in_order(self.pool, jobs):
            data = piece.view(torch.uint8).numpy().data
            self.file.write(data)
            written += data.nbytes
        self.file.write(bytes(-written % alignment))


def pack_panels(rows: Tensor) -> Tensor:
    """Rows of W [O, K] in bfloat16 or float32 -> their panels, 1-D. O starts a panel."""
    num_rows, inputs = rows.shape
    depth = WORD_BYTES // rows.dtype.itemsize
    if inputs % depth:
        rows = torch.nn.functional.pad(rows, (0, 1))
    # Neighbouring k of bfloat16 travel together, as one 32-bit word.
    words = rows.contiguous().view(torch.int32)
    steps = words.shape[1]
    whole, rest = divmod(num_rows, PANEL_COLUMNS)
    narrow = -(-rest // NARROW_COLUMNS) * NARROW_COLUMNS
    packed = torch.empty((whole * PANEL_COLUMNS + narrow) * steps, dtype=torch.int32)
    # One copy a panel: 64 columns of transposed writes stay in the cache.
    panels = packed[: whole * PANEL_COLUMNS * steps].view(whole, steps, PANEL_COLUMNS)
    for index, panel in enumerate(panels):
        panel.copy_(words[index * PANEL_COLUMNS : (index + 1) * PANEL_COLUMNS].T)
    if rest:
        last = packed[whole * PANEL_COLUMNS * steps :].view(steps, narrow)
        last[:, rest:] = 0
        last[:, :rest].copy_(words[whole * PANEL_COLUMNS :].T)
    return packed


def _jobs(
    weight: WeightLayout, sources: tuple[str, ...], read: Read, integers: ScaledWeights
) -> Iterator[Callable[[], Tensor]]:
    """A job for each piece of the weight. Jobs can run in any order."""
    if weight.format.is_scaled:
        yield from _quantized_jobs(weight, sources, integers)
        return
    dtype = TORCH_DTYPES[weight.format.dtype]
    row_elements = math.prod(weight.shape[1:])
    shape = (-1, row_elements) if weight.layout == "panels" else (-1,)
    rows_at_once = _rows_at_once(stored_bytes(weight.format.dtype, row_elements))
    for piece in _checked(weight, _row_pieces(map(read, sources), rows_at_once, _cat)):

        def job(piece: Tensor = piece) -> Tensor:
            rows = piece.to(dtype).contiguous().view(shape)
            return pack_panels(rows) if weight.layout == "panels" else rows

        yield job


def _matrix_jobs(
    stack: WeightLayout, index: int, read: Read, integers: ScaledWeights
) -> Iterator[Callable[[], Tensor]]:
    """A job for each half of a matrix of a stack."""
    name = matrix_name(stack.name, index)
    matrix = integers.matrix(name) if stack.format.is_scaled else read(name)
    if tuple(matrix.shape) != stack.shape[1:]:
        raise InternalError(f"{name} is {tuple(matrix.shape)}, not {stack.shape[1:]}")
    rows = stack.half.shape[0]
    for half in (matrix[:rows], matrix[rows:]):
        if isinstance(half, Scaled):
            yield partial(pack_quantized, half, form=stack.format)
        else:
            yield partial(_panels_of, half, TORCH_DTYPES[stack.format.dtype])


def _panels_of(rows: Tensor, dtype: torch.dtype) -> Tensor:
    return pack_panels(rows.to(dtype).contiguous())


def _quantized_jobs(
    weight: WeightLayout, sources: tuple[str, ...], integers: ScaledWeights
) -> Iterator[Callable[[], Tensor]]:
    pieces = _row_pieces(map(integers.matrix, sources), _rows_at_once(weight.shape[1]), stack)
    for piece in _checked(weight, pieces):
        yield partial(pack_quantized, piece, form=weight.format)


def _rows_at_once(row_bytes: int) -> int:
    """Rows of a piece: whole panels of either kind."""
    return max(1, PIECE_BYTES // (row_bytes * PANEL_COLUMNS)) * PANEL_COLUMNS


def _checked(weight: WeightLayout, pieces: Iterable[Rowed]) -> Iterator[Rowed]:
    """The pieces. Raises InternalError if they do not add up to the rows of the weight."""
    num_rows = 0
    for piece in pieces:
        num_rows += piece.shape[0]
        yield piece
    if num_rows != weight.shape[0]:
        raise InternalError(f"weight {weight.name} has {num_rows} rows, not {weight.shape[0]}")


def _row_pieces(
    parts: Iterable[Rowed], num_rows: int, join: Callable[[Sequence[Rowed]], Rowed]
) -> Iterator[Rowed]:
    """The parts stacked on axis 0, in pieces of num_rows rows; only the last may be shorter."""
    held: list[Rowed] = []
    for part in parts:
        start = 0
        while start < part.shape[0]:
            missing = num_rows - sum(piece.shape[0] for piece in held)
            held.append(part[start : start + missing])
            start += missing
            if sum(piece.shape[0] for piece in held) == num_rows:
                yield join(held) if len(held) > 1 else held[0]
                held = []
    if held:
        yield join(held) if len(held) > 1 else held[0]


def _in_order(pool: ThreadPoolExecutor, jobs: Iterable[Callable[[], Tensor]]) -> Iterator[Tensor]:
    """Results of the jobs in order, while a few jobs run ahead."""
    running: deque[Future[Tensor]] = deque()
    for job in jobs:
        running.append(pool.submit(job))
        if len(running) > PIECES_AHEAD:
            yield running.popleft().result()
    while running:
        yield running.popleft().result()


def _cat(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(parts))


def pack_quantized(matrix: Scaled, form: Format) -> Tensor:
    """A matrix -> its panels, uint8, 1-D.

    The rows start a panel. Values lie in the range of their bits. Scales must be
    exact in float16. Raises ValueError if `fits` is false.
    """
    rows, columns = matrix.values.shape
    if not fits(columns, form):
        raise ValueError(f"{columns} columns do not pack as {form}")
    together = blocks_together(form)
    size = form.block * together
    panels, blocks = -(-rows // PANEL_ROWS), -(-columns // size)
    packed = torch.empty((panels, blocks, block_bytes(form, size)), dtype=torch.uint8)
    for first, scales in ((0, matrix.scales), (together, matrix.minimums)):
        if scales is not None:
            place = packed[:, :, first * SCALE_BYTES : (first + together) * SCALE_BYTES]
            _by_group(place.view(torch.float16), _filled(scales, blocks * together))
    _pack_groups(matrix, form, packed)
    values = _filled(matrix.values, blocks * whole(size, STORED_TOGETHER[form.bits]))
    quads = _bytes(_unsigned(values, form), form.bits).view(panels, PANEL_ROWS, blocks, -1)
    weights = packed[:, :, weights_at(form) :].view(torch.int32).unflatten(-1, (-1, PANEL_ROWS))
    for panel, source in zip(weights, quads.view(torch.int32), strict=True):
        panel.copy_(source.permute(1, 2, 0))
    # The last block ends with its last quads.
    return packed.view(panels, -1)[:, : panel_bytes(columns, form)].reshape(-1)


def _filled(rows: Tensor, columns: int = 0) -> Tensor:
    """Rows, filled up with zeros to a whole number of panels, and to so many columns."""
    below, beside = -rows.shape[0] % PANEL_ROWS, max(0, columns - rows.shape[1])
    return torch.nn.functional.pad(rows, (0, beside, 0, below)) if below or beside else rows


def _pack_groups(matrix: Scaled, form: Format, packed: Tensor) -> None:
    """Puts what groups have into the blocks of panels, uint8 [panels, blocks, bytes]."""
    groups = packed.shape[1] * groups_together(form)
    first, second, end = multipliers_at(form), zeros_at(form), weights_at(form)
    own = packed[:, :, first:second]
    if matrix.multipliers is None:
        pass
    elif form.multiplier == SIX_BITS:
        _pack_six_bits(matrix, groups, own.unflatten(-1, (-1, SIX_BITS_BYTES)))
    elif form.multiplier == BYTE:
        stored = matrix.multipliers.view(torch.uint8) + BYTE_OFFSET
        _by_group(own, _filled(stored, groups))
    else:
        _by_row(own, _words(_filled(matrix.multipliers - form.zeros * MULTIPLIER_OFFSET, groups)))
    if matrix.zeros is not None and not form.minimums:
        _by_group(packed[:, :, second:end], _filled(_unsigned_zeros(matrix, form.bits), groups))


def _by_row(places: Tensor, rows: Tensor) -> None:
    """Rows of bytes [R, n] into [panels, blocks, bytes]: first all of a row in a block."""
    panels, blocks, _ = places.shape
    by_row = places.unflatten(-1, (PANEL_ROWS, -1))
    by_row.copy_(rows.view(panels, PANEL_ROWS, blocks, -1).transpose(1, 2))


def _by_group(places: Tensor, rows: Tensor) -> None:
    """Rows [R, n] into [panels, blocks, n * 32]: first one of every row in a block."""
    panels, blocks, _ = places.shape
    by_group = places.unflatten(-1, (-1, PANEL_ROWS))
    by_group.copy_(rows.view(panels, PANEL_ROWS, blocks, -1).permute(0, 2, 3, 1))


def _pack_six_bits(matrix: Scaled, groups: int, places: Tensor) -> None:
    """Multipliers and zeros into [panels, blocks, n, bytes of four groups]."""
    m, z = (
        _filled(part.view(torch.uint8), groups).unflatten(-1, (-1, SIX_BITS_TOGETHER))
        for part in (matrix.multipliers, matrix.zeros)
        if part is not None
    )
    fields = torch.cat([part[..., i::2] for i in range(2) for part in (z, m)], -1)
    nibbles, above = (fields & 15).unflatten(-1, (-1, 2)), (fields >> 4).unflatten(-1, (-1, 4))
    lower = nibbles[..., 0] | nibbles[..., 1] << 4
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8)
    upper = (above << shifts).sum(-1, dtype=torch.uint8)
    start = 0
    for stored in (lower, upper):
        end = start + PANEL_ROWS * stored.shape[-1]
        place = places[..., start:end].unflatten(-1, (PANEL_ROWS, -1)).permute(0, 3, 1, 2, 4)
        place.copy_(stored.view(place.shape))
        start = end


def _unsigned(values: Tensor, form: Format) -> Tensor:
    """Values as the unsigned numbers that are stored."""
    if form.codes:
        places = torch.zeros(256, dtype=torch.uint8)
        places[torch.tensor(CODED) + 128] = torch.arange(len(CODED), dtype=torch.uint8)
        return places[values.int() + 128]
    return values.contiguous().view(torch.uint8) + zero_point(form)


def _unsigned_zeros(matrix: Scaled, bits: int) -> Tensor:
    """What is to be taken off unsigned values times their multipliers, as bytes."""
    assert matrix.zeros is not None
    if matrix.multipliers is None:
        return matrix.zeros.view(torch.uint8) + ZERO_POINTS[bits]
    whole = matrix.zeros + matrix.multipliers.short() * ZERO_POINTS[bits]
    return (whole + 128).to(torch.uint8)


def _words(multipliers: Tensor) -> Tensor:
    """int8 [R, n] -> nibbles, uint8 [R, n / 2]."""
    nibbles: Tensor = multipliers.view(torch.uint8) & 15
    pairs: Tensor = nibbles.unflatten(-1, (-1, 2))
    return pairs[..., 0] | pairs[..., 1] << 4


def _bytes(unsigned: Tensor, bits: int) -> Tensor:
    """Rows of unsigned values as the bytes that are stored, k ascending in quads."""
    if bits == 8:
        return unsigned
    low, high = (unsigned & 15).view(len(unsigned), -1, 2, HALF_BLOCK).unbind(2)
    above = _bits_above(unsigned.view(len(unsigned), -1, TOGETHER), bits)
    return torch.cat((low | high << 4, *above), -1).flatten(1)


def _bits_above(unsigned: Tensor, bits: int) -> list[Tensor]:
    """The bits above the lower 4 of bytes [R, parts, 32], in bytes [R, parts, 4] each."""
    if bits == 4:
        return []
    more = bits - 4
    quads = (unsigned >> 4).unflatten(-1, (-1, 8 // more, QUAD))
    shifts = torch.arange(0, 8, more, dtype=torch.uint8)[:, None]
    return [*(quads << shifts).sum(-2, dtype=torch.uint8).unbind(2)]
