"""The floats of checkpoints, and integers of a few bits, as numpy arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ingot.errors import CheckpointError
from ingot.models.checkpoints.formats.quantized import Array, View
from ingot.models.checkpoints.mapped_file import TensorInfo

Index = slice | tuple[slice, slice]
# How numpy views the elements of a tensor; bits of floats that it does not have as integers.
VIEWS: dict[str, type[np.generic]] = {
    "F32": np.float32, "F16": np.float16, "BF16": np.uint16,
    "F8_E4M3": np.uint8, "F8_E8M0": np.uint8,
    "U8": np.uint8, "I8": np.int8, "I32": np.int32, "I64": np.int64,
}  # fmt: skip
FLOATS = ("F32", "F16", "BF16")
FLOAT8 = "F8_E4M3"
POWER = "F8_E8M0"  # a byte, which is an exponent of two plus BIAS
BIAS = 127
NOT_A_POWER = 255


def _float8_values() -> NDArray[np.float32]:
    """The number of every byte of e4m3: a sign, 4 bits of exponent and 3 of mantissa; NaN at
    0x7f and 0xff, and no infinities (Micikevicius and others, FP8 formats for deep learning)."""
    code = np.arange(256)
    exponent, mantissa = (code >> 3) & 15, code & 7
    normal = (8 + mantissa) * np.exp2(exponent - 10.0)
    size = np.where(exponent == 0, mantissa * 2.0**-9, normal)
    size[code & 127 == 127] = np.nan
    return np.where(code < 128, size, -size).astype(np.float32)


FLOAT8_VALUES = _float8_values()
# Twice the number of every code of e2m1 (OCP Microscaling Formats 1.0): these are integers.
FLOAT4_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)


def float32_of(info: TensorInfo, stored: Array) -> NDArray[np.float32]:
    """Elements of a tensor of floats as float32. Raises CheckpointError for any not finite."""
    if info.dtype == "BF16":
        numbers = (stored.astype(np.uint32) << 16).view(np.float32)
    elif info.dtype == FLOAT8:
        numbers = FLOAT8_VALUES[stored]
    elif info.dtype == POWER:
        numbers = np.where(stored == NOT_A_POWER, np.float32(np.nan), powers_of(stored, BIAS))
    else:
        numbers = stored.astype(np.float32)
    if not np.isfinite(numbers).all():
        raise CheckpointError(
            f"the tensor {info.name} holds values that are not finite",
            hint="the checkpoint is damaged: fetch it again, or use another",
        )
    return numbers


def scales_of(view: View, info: TensorInfo, rows: Index = slice(None)) -> NDArray[np.float32]:
    """Rows of a tensor of scales as float32."""
    return float32_of(info, view(info)[rows])


def powers_of(codes: Array, offset: int) -> NDArray[np.float32]:
    """2^(code - offset) of bytes."""
    return np.exp2(codes.astype(np.float32) - offset).astype(np.float32)


def unpacked(words: Array, bits: int, axis: int) -> NDArray[np.uint8]:
    """int32 words, each of 32 / bits unsigned integers, lowest first, spread out along an axis."""
    counts = np.arange(0, 32, bits, dtype=np.uint32)
    parts = (words.view(np.uint32)[..., None] >> counts) & np.uint32((1 << bits) - 1)
    parts = np.moveaxis(parts.astype(np.uint8), -1, axis + 1 if axis >= 0 else axis)
    shape = list(words.shape)
    shape[axis] *= 32 // bits
    return parts.reshape(shape)


def nibbles(stored: Array) -> NDArray[np.uint8]:
    """Bytes [..., n] -> the two halves of each, the lower first, [..., 2 n]."""
    return np.stack((stored & 15, stored >> 4), axis=-1).reshape(*stored.shape[:-1], -1)


def signed(unsigned: Array, bits: int) -> NDArray[np.int8]:
    """Unsigned integers less 2^(bits - 1)."""
    return (unsigned.astype(np.int16) - (1 << (bits - 1))).astype(np.int8)
