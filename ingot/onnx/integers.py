"""Matrices in integers, as `MatMulNBits` of onnxruntime reads them.

O rows, I columns, G columns that share a scale, N bits a number.
https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.MatMulNBits
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from ingot.artifact.formats import Format, Storage
from ingot.onnx.operators import product
from ingot.onnx.weights import Weight
from ingot.ops.scaled import Scaled, whole_parts

GROUPS = (16, 32, 64, 128, 256)  # those that the operator takes
BITS = (4, 8)


def fits(columns: int, form: Format) -> bool:
    """Tells whether the operator takes rows of so many columns in a format."""
    written = _written(form)
    return not form.is_two_level and written.group in GROUPS and written.bits in BITS


def narrowest(storage: Storage) -> Storage:
    """The storage nearest to another whose integers the file has in their own bits: int4 with zeros
    has a scale for every group, and no multipliers."""
    both = storage.zeros and storage.multipliers and storage.bits in BITS
    return replace(storage, multipliers=False) if both else storage


class Integers(Weight):
    """A matrix of the artifact's own integers, with a scale for every group of each row.

    The file has `integers` uint8 [O, groups, G*N/8], shifted so that none is negative and two to a
    byte, low half first, where they have 4 bits; zeros fill up the last group. And it has `scales`
    [O, groups], which are those of the blocks times the multipliers of the groups. If every group
    has a zero of its own, `zeros` uint8 [O, groups*N/8] are shifted and packed as the integers. A
    zero beside a multiplier is no multiple of it, so such integers are written as the int8 that
    they make, and their groups are the blocks.
    """

    integers: Tensor
    scales: Tensor
    zeros: Tensor | None

    def __init__(
        self,
        shape: tuple[int, ...],
        form: Format,
        dtype: torch.dtype,
        make: Callable[[], Scaled],
    ) -> None:
        super().__init__()
        if form != (written := _written(form)):
            form, make = written, partial(_combined, make)
        self.bits, self.group, self.columns = form.bits, form.group, shape[1]
        rows, groups = shape[0], -(-shape[1] // form.group)
        stored = (rows, groups, form.group * form.bits // 8)
        self.add("integers", stored, torch.uint8, lambda: packed(make(), form.bits, stored))
        self.add("scales", (rows, groups), dtype, lambda: scales(make(), groups).to(dtype))
        if form.zeros:
            row = (rows, -(-groups * form.bits // 8))
            self.add("zeros", row, torch.uint8, lambda: packed_zeros(make(), form.bits))
        else:
            self.register_parameter("zeros", None)

    def numbers(self) -> Tensor:
        return self._dequantized(self.integers.flatten(1), self.scales, self.zeros)

    def product(self, x: Tensor) -> Tensor:
        return product(x, self.integers, self.scales, self.zeros, self.bits, self.group)

    def rows(self, ids: Tensor) -> Tensor:
        def picked(table: Tensor) -> Tensor:
            return functional.embedding(ids, table)

        zeros = None if self.zeros is None else picked(self.zeros)
        return self._dequantized(picked(self.integers.flatten(1)), picked(self.scales), zeros)

    def _dequantized(self, integers: Tensor, scales: Tensor, zeros: Tensor | None) -> Tensor:
        numbers = dequantized(integers, scales, self.bits, self.group, zeros)
        filled = numbers.shape[-1] > self.columns
        return numbers[..., : self.columns] if filled else numbers


def _written(form: Format) -> Format:
    """The format in which the file has the integers of another."""
    both = form.zeros and form.has_multipliers
    return Format("int8", form.block, form.block, form.scale) if both else form


def _combined(make: Callable[[], Scaled]) -> Scaled:
    """The same numbers as integers that only lack the scales of their blocks."""
    matrix = make()
    return Scaled(matrix.integers().to(torch.int8), None, matrix.scales, block=matrix.block)


def packed(matrix: Scaled, bits: int, shape: tuple[int, ...]) -> Tensor:
    """The integers of a matrix as the file has them."""
    values = whole_parts(matrix.values, matrix.group).flatten(1)
    return _in_bytes(values, bits).reshape(shape)


def packed_zeros(matrix: Scaled, bits: int) -> Tensor:
    """The zeros of a matrix that has them, as the file has them."""
    assert matrix.zeros is not None, "a format with zeros has some"
    return _in_bytes(whole_parts(matrix.zeros, 8 // bits).flatten(1), bits)


def _in_bytes(values: Tensor, bits: int) -> Tensor:
    """int8 [O, n] -> uint8 [O, n*N/8]: shifted so that none is negative, low half first."""
    shifted = (values + (1 << (bits - 1))).to(torch.uint8)
    if bits == 4:
        shifted = shifted[:, 0::2] | (shifted[:, 1::2] << 4)
    return shifted.contiguous()


def scales(matrix: Scaled, groups: int) -> Tensor:
    """The scale of every group, float32 [O, groups]."""
    each = matrix.block // matrix.group
    wide = matrix.scales.repeat_interleave(each, dim=1)[:, :groups]
    return wide if matrix.multipliers is None else wide * matrix.multipliers


def dequantized(
    integers: Tensor, scales: Tensor, bits: int, group: int, zeros: Tensor | None = None
) -> Tensor:
    """uint8 [..., I*N/8], scales [..., I/G], zeros [..., I/G*N/8] -> numbers float32 [..., I]."""
    count = scales.shape[-1]
    groups = _unpacked(integers, bits).unflatten(-1, (count, group))
    if zeros is None:
        groups = groups - (1 << (bits - 1))
    else:
        groups = groups - _unpacked(zeros, bits)[..., :count, None]
    numbers: Tensor = groups * scales.float()[..., None]
    return numbers.flatten(-2)


def _unpacked(values: Tensor, bits: int) -> Tensor:
    """uint8 [..., n*N/8] -> [..., n] in float32, still shifted."""
    numbers = values.float()
    if bits == 4:
        high = torch.floor(numbers / 16)
        numbers = torch.stack((numbers - 16 * high, high), -1).flatten(-2)
    return numbers
