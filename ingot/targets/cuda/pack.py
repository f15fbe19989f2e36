"""Packs the weights of a plan into one safetensors file, in pieces; `weights` has the layout."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from ingot.artifact.formats import CODED, Format
from ingot.artifact.plan import Buffer, Plan, aligned
from ingot.artifact.tensors import ALIGNMENT, PAGE, header, in_file
from ingot.errors import CheckpointError, InternalError
from ingot.ops.dtypes import NAMES, TORCH_DTYPES
from ingot.ops.scaled import Scaled
from ingot.ops.stacks import matrix_name
from ingot.targets.chunked_file import ChunkedFile
from ingot.targets.cuda.weights import (
    UNIT,
    groups_of,
    high_bits,
    is_stack,
    layout_of,
    least_multiplier,
    least_value,
    nbytes_of,
    stored_dtype,
    tile_columns,
)
from ingot.targets.stacks import modules_of
from ingot.targets.target import Read, ScaledWeights

PIECE_BYTES = 16 << 20


def pack(path: Path, plan: Plan, read: Read, integers: ScaledWeights) -> None:
    """Writes the file of all weights: 1-D tensors under the plan's names, 64-byte aligned, and
    before them the stacks, matrix by matrix.

    `read` gives a source parameter on the CPU, in any floating dtype. The system may drop what it
    returned from memory once it is called again. `integers` gives the parameters that the plan has
    in integers. Raises InternalError where sources do not add up to a weight, and
    CheckpointError where the dtype of one ends before its numbers.
    """
    weights = plan.of_kind("weight")
    stacks = {weight.name: weight for weight in weights if is_stack(weight)}
    sizes = {w.name: (stored_dtype(w), nbytes_of(w)) for w in weights}
    with path.open("wb", buffering=0) as raw, ChunkedFile(raw) as file:
        file.write(header(in_file(sizes, stacks), PAGE if stacks else ALIGNMENT))
        for together in modules_of(stacks).values():
            for index in range(int(stacks[together[0]].shape[0])):
                for name in together:
                    _write(file, matrix_of(stacks[name], index), read, integers)
        for weight in weights:
            if weight.name not in stacks:
                _write(file, weight, read, integers)


def matrix_of(stack: Buffer, index: int) -> Buffer:
    """One matrix of a stack as a weight of its own."""
    name = matrix_name(stack.name, index)
    return Buffer(name=name, format=stack.format, shape=stack.shape[1:], kind="weight")


def _write(file: ChunkedFile, weight: Buffer, read: Read, integers: ScaledWeights) -> None:
    """Writes a weight that is no stack, and zeros up to a multiple of 64 bytes."""
    written = 0
    for piece in pieces_of(weight, read, integers):
        data = piece.contiguous().view(torch.uint8).numpy().data
        file.write(data)
        written += data.nbytes
    if written != nbytes_of(weight):
        raise InternalError(f"weight {weight.name} became {written} bytes, not {nbytes_of(weight)}")
    file.write(bytes(aligned(written) - written))


def pieces_of(weight: Buffer, read: Read, integers: ScaledWeights) -> Iterator[Tensor]:
    """The packed weight in pieces of bounded size, without the bytes that fill it up to 64."""
    if weight.format.is_scaled:
        return _integers(weight, integers)
    return _numbers(weight, read)


def pack_values(matrix: Scaled, form: Format) -> Tensor:
    """The values of a matrix [rows, K] -> uint8 [rows, bytes of a row]."""
    values = matrix.values
    tile = tile_columns(values.shape[-1], form)
    values = torch.nn.functional.pad(values, (0, -values.shape[-1] % tile))
    if form.bits == 8:
        return _by_lane(values.view(torch.uint8), min(UNIT, tile))
    low, high = _unsigned(values, form).unflatten(-1, (-1, 2, tile // 2)).unbind(-2)
    pairs = low & 15 | high << 4
    if form.bits == 4 and not form.is_two_level:
        pairs ^= 8 << 4  # two's complement
    return _by_lane(pairs.flatten(-2), min(UNIT, tile // 2))


def pack_high(matrix: Scaled, form: Format) -> Tensor:
    """The high bits of a matrix -> uint8 [rows, tiles, bytes of a tile]."""
    values, bits = matrix.values, high_bits(form)
    tile, together = tile_columns(values.shape[-1], form), 4 // bits
    values = torch.nn.functional.pad(values, (0, -values.shape[-1] % tile))
    beyond = _unsigned(values, form) >> 4
    low, high = beyond.unflatten(-1, (-1, 2, tile // 2)).unbind(-2)
    pairs = _by_lane((low | high << bits).flatten(-2), min(UNIT, tile // 2))
    parts = pairs.unflatten(-1, (-1, together, tile // 2 // together)).unbind(-2)
    packed = torch.zeros_like(parts[0])
    for place, part in enumerate(parts):
        packed |= part << 2 * bits * place
    return packed


def pack_multipliers(matrix: Scaled, form: Format) -> Tensor:
    """The multipliers of a matrix -> uint8 [rows, tiles, bytes of a tile]."""
    if form.is_two_level:
        return _of_pairs(matrix, form)[..., :2]
    assert matrix.multipliers is not None
    columns, multipliers = matrix.shape[-1], matrix.multipliers
    missing, least = groups_of(columns, form) - multipliers.shape[-1], least_multiplier(form)
    filled = torch.nn.functional.pad(multipliers, (0, missing), value=max(least, 0))
    halves = _halves((filled - least).view(torch.uint8), columns, form)
    return halves[..., 0, :] | halves[..., 1, :] << 4


def pack_zeros(matrix: Scaled, form: Format) -> Tensor:
    """The zeros of a matrix -> uint8 [rows, blocks], or where there are multipliers [rows, tiles,
    bytes of a tile]."""
    if form.is_two_level:
        return _of_pairs(matrix, form)[..., 2:3]
    assert matrix.zeros is not None
    columns, zeros = matrix.shape[-1], matrix.zeros.view(torch.uint8)
    if not form.has_multipliers:
        return zeros
    filled = torch.nn.functional.pad(zeros, (0, groups_of(columns, form) - zeros.shape[-1]))
    return _halves(filled, columns, form).transpose(-1, -2).flatten(-2)


def pack_scales(matrix: Scaled) -> Tensor:
    """The scales of a matrix, and its minimums -> float16 [rows, blocks], or twice as many."""
    parts = [part for part in (matrix.scales, matrix.minimums) if part is not None]
    return torch.cat(parts, -1).to(torch.float16)


def _unsigned(values: Tensor, form: Format) -> Tensor:
    """Values as they are stored, from 0 on: uint8."""
    if form.codes:
        codes = torch.tensor(CODED, dtype=torch.int8)
        return torch.searchsorted(codes, values, out_int32=True).to(torch.uint8)
    return (values - least_value(form)).view(torch.uint8)


def _of_pairs(matrix: Scaled, form: Format) -> Tensor:
    """What pairs of groups have from the lowest bit on, multipliers and then zeros -> uint8 [rows,
    pairs, 4]."""
    small = [part for part in (matrix.multipliers, matrix.zeros) if part is not None]
    missing = groups_of(matrix.shape[-1], form) - small[0].shape[-1]
    pairs = [torch.nn.functional.pad(part, (0, missing)).unflatten(-1, (-1, 2)) for part in small]
    fields = torch.cat(pairs, -1).int() & (1 << form.multiplier) - 1
    places = form.multiplier * torch.arange(fields.shape[-1], dtype=torch.int32)
    return (fields << places).sum(-1, keepdim=True, dtype=torch.int32).view(torch.uint8)


def _halves(groups: Tensor, columns: int, form: Format) -> Tensor:
    """What groups have, [rows, groups] -> [rows, tiles, 2, groups of half a tile]."""
    half: Tensor = groups.unflatten(-1, (-1, 2, tile_columns(columns, form) // form.group // 2))
    return half


def _by_lane(rows: Tensor, unit: int) -> Tensor:
    """Bytes in the order of their columns -> in that of memory."""
    units: Tensor = rows.unflatten(-1, (-1, unit // 16, 2, 4, 2))
    return units.permute(0, 1, 4, 2, 3, 5).flatten(1)


def _numbers(weight: Buffer, read: Read) -> Iterator[Tensor]:
    """The weight in pieces of at most PIECE_BYTES, in its dtype."""
    dtype = TORCH_DTYPES[weight.dtype]
    for source in weight.sources or (weight.name,):
        for piece in read(source).flatten().split(PIECE_BYTES // dtype.itemsize):
            yield _rounded(piece, dtype, source)


def _rounded(piece: Tensor, dtype: torch.dtype, source: str) -> Tensor:
    """Some numbers of a parameter in another dtype. Raises CheckpointError if it is too narrow."""
    found = piece.to(dtype)
    largest = torch.finfo(dtype).max
    if largest < torch.finfo(piece.dtype).max and not bool(found.isfinite().all()):
        raise CheckpointError(
            f"{source} has numbers up to {float(piece.abs().max()):g}, and {NAMES[dtype]} ends "
            f"at {largest:g}",
            hint="Give --dtype bfloat16 or float32.",
        )
    return found


def _integers(weight: Buffer, integers: ScaledWeights) -> Iterator[Tensor]:
    """The bytes of a weight: its values in pieces, then the small parts, which are held back."""
    rows, columns = map(int, weight.shape)
    layout = layout_of(rows, columns, weight.format)
    high, multipliers, zeros, scales = [], [], [], []
    at_once = max(1, PIECE_BYTES // columns)
    for source in weight.sources or (weight.name,):
        matrix = integers.matrix(source)
        for first in range(0, matrix.values.shape[0], at_once):
            piece = matrix[first : first + at_once]
            yield pack_values(piece, weight.format)
            scales.append(pack_scales(piece))
            if high_bits(weight.format):
                high.append(pack_high(piece, weight.format))
            if weight.format.has_multipliers:
                multipliers.append(pack_multipliers(piece, weight.format))
            if weight.format.zeros:
                zeros.append(pack_zeros(piece, weight.format))
    written = rows * layout.row_bytes
    starts = layout.high, layout.multipliers, layout.zeros, layout.scales
    for start, pieces in zip(starts, (high, multipliers, zeros, scales), strict=True):
        yield _hole(start - written)
        written = start
        if pieces:
            whole = _columns_first(pieces)
            yield whole
            written += whole.nbytes


def _columns_first(pieces: Iterable[Tensor]) -> Tensor:
    """[rows, columns, ...] -> [columns, rows, ...]"""
    return torch.cat(list(pieces)).transpose(0, 1).contiguous()


def _hole(nbytes: int) -> Tensor:
    return torch.zeros(nbytes, dtype=torch.uint8)
