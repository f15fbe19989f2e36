"""Matrices in float8 e4m3 with a scale for every block, row or matrix, as several programs write.

A number is float8 * scale. No storage holds these: they are dequantized on request.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ingot.errors import Noting, OnFault
from ingot.models.checkpoints.formats.floats import FLOAT8, FLOATS, POWER, float32_of
from ingot.models.checkpoints.formats.parts import Infos, MatrixParts, fault_of, misshapen
from ingot.models.checkpoints.formats.quantized import Decoded, QuantizedTensor, View, quantized
from ingot.models.checkpoints.formats.settings import QuantizationKeys
from ingot.models.checkpoints.mapped_file import TensorInfo

# Of activations: what a step rounds is its own affair.
UNREAD = (".activation_scale", ".input_scale", ".input_scale_ub")


@dataclass(frozen=True, slots=True)
class Float8:
    """A matrix in float8, of which `block` (rows, columns) share a scale."""

    values: TensorInfo
    scales: TensorInfo
    block: tuple[int, int]
    label: str

    storage = None

    def rows(self, view: View, first: int, last: int) -> Decoded:
        high, wide = self.block
        values = float32_of(self.values, view(self.values)[first:last])
        # A single scale may have no dimensions at all.
        stored = view(self.scales).reshape(-(-self.values.shape[0] // high), -1)
        start = first // high
        part = float32_of(self.scales, stored[start : -(-last // high)])
        scales = part.repeat(high, axis=0)[first - start * high :][: last - first]
        return Decoded(values, wide, scales)


def float8_matrix(
    stem: str, parts: Infos, scales: str, block: tuple[int, int], label: str
) -> QuantizedTensor:
    """The matrix of these tensors.

    Raises CheckpointError where they do not fit together. A block of (0, 0) is the whole matrix,
    and (1, 0) a row of it.
    """
    values, scale = parts[".weight"], parts[scales]
    shape = values.shape
    if len(shape) == 2:
        high, wide = (size or whole for size, whole in zip(block, shape, strict=True))
        blocks = (-(-shape[0] // high), -(-shape[1] // wide))
        alike = blocks == (1, 1) and scale.shape in ((), (1,))
        wrong = misshapen("" if alike else fault_of(scale, blocks, (*FLOATS, POWER)))
    else:
        high, wide, wrong = 1, 1, misshapen(f"{values.name} {list(shape)} with one scale")
    if wrong:
        raise wrong
    encoding = Float8(values, scale, (high, wide), label)
    return quantized(f"{stem}.weight", shape, tuple(parts.values()), encoding)


def find_blocks(
    settings: QuantizationKeys, infos: Infos, on_fault: OnFault
) -> Iterator[QuantizedTensor]:
    """The matrices of quant_method fp8: in blocks, or with one scale each."""
    size = settings.get("weight_block_size")
    if size is None:
        block = (0, 0)
    elif isinstance(size, list) and len(size) == 2 and all(type(n) is int and n > 0 for n in size):
        block = (size[0], size[1])
    else:
        raise settings.wrong("weight_block_size", "two whole numbers, or null")
    settings.choice("fmt", ("e4m3",), "e4m3")
    words = "fp8 e4m3, one scale a matrix" if size is None else f"fp8 e4m3 b{block[0]}x{block[1]}"
    return _find(infos, ".weight_scale_inv", block, words, on_fault)


def find_rows(
    settings: QuantizationKeys, infos: Infos, on_fault: OnFault
) -> Iterator[QuantizedTensor]:
    """The matrices of quant_method fbgemm_fp8: a scale for every row."""
    del settings
    return _find(infos, ".weight_scale", (1, 0), "fp8 e4m3, one scale a row", on_fault)


def _find(
    infos: Infos, scales: str, block: tuple[int, int], label: str, on_fault: OnFault
) -> Iterator[QuantizedTensor]:
    for stem, parts in layout(scales).matrices(infos, on_fault):
        with Noting(on_fault):
            yield float8_matrix(stem, parts, scales, block, label)


def layout(scales: str) -> MatrixParts:
    """The tensors of a matrix in float8."""
    return MatrixParts((".weight", scales), unread=UNREAD, dtypes={".weight": (FLOAT8,)})
