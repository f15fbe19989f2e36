"""Matrices in integers, as `MatMulNBits` of onnxruntime reads them.

O rows, I columns, G columns that share a scale, N bits a number.
https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.MatMulNBits
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from ingot.artifact.formats import Format
from ingot.onnx.operators import product
from ingot.onnx.weights import Weight
from ingot.ops.scaled import Scaled, whole_parts

GROUPS = (16, 32, 64, 128, 256)  # those that the operator takes


def fits(columns: int, form: Format) -> bool:
    """Whether the operator takes rows of so many columns in a format."""
    return form.group in GROUPS and not form.zeros


class Integers(Weight):
    """A matrix of the artifact's own integers, with a scale for every group of each row.

    The file has `integers` uint8 [O, groups, G*N/8], shifted so that none is negative and two to a
    byte, low half first, where they have 4 bits; zeros fill up the last group. And it has `scales`
    [O, groups], which are those of the blocks times the multipliers of the groups.
    """

    integers: Tensor
    scales: Tensor

    def __init__(
        self,
        shape: tuple[int, ...],
        form: Format,
        dtype: torch.dtype,
        make: Callable[[], Scaled],
    ) -> None:
        super().__init__()
        self.bits, self.group, self.columns = form.bits, form.group, shape[1]
        rows, groups = shape[0], -(-shape[1] // form.group)
        stored = (rows, groups, form.group * form.bits // 8)
        self.add("integers", stored, torch.uint8, lambda: packed(make(), form.bits, stored))
        self.add("scales", (rows, groups), dtype, lambda: scales(make(), groups).to(dtype))

    def numbers(self) -> Tensor:
        return self._dequantized(self.integers.flatten(1), self.scales)

    def product(self, x: Tensor) -> Tensor:
        return product(x, self.integers, self.scales, self.bits, self.group)

    def rows(self, ids: Tensor) -> Tensor:
        integers = functional.embedding(ids, self.integers.flatten(1))
        return self._dequantized(integers, functional.embedding(ids, self.scales))

    def _dequantized(self, integers: Tensor, scales: Tensor) -> Tensor:
        numbers = dequantized(integers, scales, self.bits, self.group)
        filled = numbers.shape[-1] > self.columns
        return numbers[..., : self.columns] if filled else numbers


def packed(matrix: Scaled, bits: int, shape: tuple[int, ...]) -> Tensor:
    """The integers of a matrix as the file has them."""
    values = whole_parts(matrix.values, matrix.group).flatten(1)
    shifted = (values + (1 << (bits - 1))).to(torch.uint8)
    if bits == 4:
        shifted = shifted[:, 0::2] | (shifted[:, 1::2] << 4)
    return shifted.reshape(shape).contiguous()


def scales(matrix: Scaled, groups: int) -> Tensor:
    """The scale of every group, float32 [O, groups]."""
    each = matrix.block // matrix.group
    wide = matrix.scales.repeat_interleave(each, dim=1)[:, :groups]
    return wide if matrix.multipliers is None else wide * matrix.multipliers


def dequantized(integers: Tensor, scales: Tensor, bits: int, group: int) -> Tensor:
    """uint8 [..., I*N/8] and scales [..., I/G] -> the numbers [..., I] in float32."""
    values = integers.float()
    if bits == 4:
        high = torch.floor(values / 16)
        values = torch.stack((values - 16 * high, high), -1).flatten(-2)
    groups = values.unflatten(-1, (scales.shape[-1], group)) - (1 << (bits - 1))
    numbers: Tensor = groups * scales.float()[..., None]
    return numbers.flatten(-2)
