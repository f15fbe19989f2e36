"""The types of tensors in GGUF files, and the numbers that their blocks stand for.

A block is some neighbours of a row with what they share. Layouts are those of `ggml-common.h`;
float32 arithmetic is in the order of `ggml-quants.c`, so that numbers are bitwise those of
llama.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Integers = NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class Blocks:
    """Some blocks as numbers: integer * scale of its group - minimum of its group.

    Attributes:
        values: int8 [n, length].
        scales: float32 [n, groups].
        minima: float32 of the same shape; None where there are none.
    """

    values: Integers
    scales: Floats
    minima: Floats | None = None

    def numbers(self) -> Floats:
        """float32 [n, length]."""
        rows, groups = self.scales.shape
        out: Floats = self.values.reshape(rows, groups, -1).astype(np.float32)
        out *= self.scales[:, :, None]
        if self.minima is not None:
            out -= self.minima[:, :, None]
        return out.reshape(rows, -1)


@dataclass(frozen=True, slots=True)
class TensorType:
    """Storage type of a tensor's numbers.

    Attributes:
        name: as llama.cpp prints it.
        length: numbers in a block; nbytes: bytes of a block.
        decode: reads blocks [n, nbytes]; None where numbers are stored as such.
        bits: of integers that with float16 scales stand for exactly the same numbers; 0 for none.
    """

    name: str
    length: int
    nbytes: int
    decode: Callable[[Bytes], Blocks] | None = None
    bits: int = 0


# Codes of IQ4_NL and IQ4_XS.
_LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
# Codes of MXFP4, doubled.
_FP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def _half(blocks: Bytes, at: int) -> Floats:
    """The float16 at a place of every block, [n, 1]."""
    return blocks[:, at : at + 2].copy().view(np.float16).astype(np.float32)


def _fields(data: Bytes, bits: int, width: int) -> Bytes:
    """The fields of so many bits in every byte, [n, -1]: of each `width` bytes first all lowest
    fields, then the next."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    split = data.reshape(len(data), -1, 1, width) >> shifts & np.uint8((1 << bits) - 1)
    return split.reshape(len(data), -1)


def _less(unsigned: Bytes, offset: int) -> Integers:
    return unsigned.view(np.int8) - np.int8(offset)


def _nibbles(blocks: Bytes) -> Bytes:
    """The halves of the last 16 bytes of every block, [n, 32]."""
    return _fields(blocks[:, -16:], 4, 16)


def _q4_0(blocks: Bytes) -> Blocks:
    return Blocks(_less(_nibbles(blocks), 8), _half(blocks, 0))


def _q4_1(blocks: Bytes) -> Blocks:
    return Blocks(_less(_nibbles(blocks), 0), _half(blocks, 0), -_half(blocks, 2))


def _five_bits(blocks: Bytes) -> Bytes:
    fifth = np.unpackbits(blocks[:, -20:-16], axis=1, bitorder="little")
    found: Bytes = _nibbles(blocks) | fifth << np.uint8(4)
    return found


def _q5_0(blocks: Bytes) -> Blocks:
    return Blocks(_less(_five_bits(blocks), 16), _half(blocks, 0))


def _q5_1(blocks: Bytes) -> Blocks:
    return Blocks(_less(_five_bits(blocks), 0), _half(blocks, 0), -_half(blocks, 2))


def _q8_0(blocks: Bytes) -> Blocks:
    return Blocks(blocks[:, 2:].view(np.int8), _half(blocks, 0))


def _q2_k(blocks: Bytes) -> Blocks:
    shares = blocks[:, :16]
    scales = _half(blocks, 80) * (shares & 15).astype(np.float32)
    minima = _half(blocks, 82) * (shares >> 4).astype(np.float32)
    return Blocks(_less(_fields(blocks[:, 16:80], 2, 32), 0), scales, minima)


def _q3_k(blocks: Bytes) -> Blocks:
    low, high = _fields(blocks[:, 96:104], 4, 8), _fields(blocks[:, 104:108], 2, 4)
    shares = _less(low | high << np.uint8(4), 32).astype(np.float32)
    third = _fields(blocks[:, :32], 1, 32)  # a clear bit takes 4 away
    values = _less(_fields(blocks[:, 32:96], 2, 32) | third << np.uint8(2), 4)
    return Blocks(values, _half(blocks, 108) * shares)


def _six_bits(shares: Bytes) -> tuple[Floats, Floats]:
    """The multipliers and the minima of 8 groups in 12 bytes."""
    first, second, both = shares[:, :4], shares[:, 4:8], shares[:, 8:]
    scales = np.hstack((first & 63, both & 15 | first >> 6 << 4))
    minima = np.hstack((second & 63, both >> 4 | second >> 6 << 4))
    return scales.astype(np.float32), minima.astype(np.float32)


def _with_minima(blocks: Bytes, values: Bytes) -> Blocks:
    scales, minima = _six_bits(blocks[:, 4:16])
    return Blocks(_less(values, 0), _half(blocks, 0) * scales, _half(blocks, 2) * minima)


def _q4_k(blocks: Bytes) -> Blocks:
    return _with_minima(blocks, _fields(blocks[:, 16:], 4, 32))


def _q5_k(blocks: Bytes) -> Blocks:
    fifth = _fields(blocks[:, 16:48], 1, 32)
    return _with_minima(blocks, _fields(blocks[:, 48:], 4, 32) | fifth << np.uint8(4))


def _q6_k(blocks: Bytes) -> Blocks:
    low, high = _fields(blocks[:, :128], 4, 64), _fields(blocks[:, 128:192], 2, 32)
    shares = blocks[:, 192:208].view(np.int8).astype(np.float32)
    return Blocks(_less(low | high << np.uint8(4), 32), _half(blocks, 208) * shares)


def _iq4_nl(blocks: Bytes) -> Blocks:
    return Blocks(np.array(_LEVELS, np.int8)[_nibbles(blocks)], _half(blocks, 0))


def _iq4_xs(blocks: Bytes) -> Blocks:
    low = np.stack((blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4), axis=2).reshape(-1, 8)
    high = np.stack([blocks[:, 2:4] >> shift & 3 for shift in (0, 2, 4, 6)], axis=2).reshape(-1, 8)
    shares = _less(low | high << np.uint8(4), 32).astype(np.float32)
    values = np.array(_LEVELS, np.int8)[_fields(blocks[:, 8:], 4, 16)]
    return Blocks(values, _half(blocks, 0) * shares)


def _mxfp4(blocks: Bytes) -> Blocks:
    # Half of the power of two that the byte stands for; codes are doubled.
    scales = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 128)
    return Blocks(np.array(_FP4, np.int8)[_nibbles(blocks)], scales.astype(np.float32))


# By the numbers of `enum ggml_type`.
TYPES: dict[int, TensorType] = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18, _q4_0, 4),
    3: TensorType("Q4_1", 32, 20, _q4_1),
    6: TensorType("Q5_0", 32, 22, _q5_0, 8),
    7: TensorType("Q5_1", 32, 24, _q5_1),
    8: TensorType("Q8_0", 32, 34, _q8_0, 8),
    10: TensorType("Q2_K", 256, 84, _q2_k),
    11: TensorType("Q3_K", 256, 110, _q3_k),
    12: TensorType("Q4_K", 256, 144, _q4_k),
    13: TensorType("Q5_K", 256, 176, _q5_k),
    14: TensorType("Q6_K", 256, 210, _q6_k),
    20: TensorType("IQ4_NL", 32, 18, _iq4_nl, 8),
    23: TensorType("IQ4_XS", 256, 136, _iq4_xs),
    30: TensorType("BF16", 1, 2),
    39: TensorType("MXFP4", 32, 17, _mxfp4, 8),
}
BY_NAME = {found.name: found for found in TYPES.values()}
# What other numbers mean, for messages.
OTHERS = {
    4: "Q4_2", 5: "Q4_3", 9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS",
    19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 34: "TQ1_0", 35: "TQ2_0",
    40: "NVFP4", 41: "Q1_0",
}  # fmt: skip
