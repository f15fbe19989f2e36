"""The types of tensors in GGUF files, and the numbers that their blocks stand for.

A block is some neighbours of a row with what they share. Layouts are those of `ggml-common.h`;
float32 arithmetic is that of `ggml-quants.c`, so that numbers are bitwise those of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ingot.artifact.formats import BYTE, CODED, SIX_BITS, Storage

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Integers = NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class Blocks:
    """Some blocks as numbers: integer * multiplier * scale - zero * minimum.

    Attributes:
        values: int8 [n, length].
        scales: float32 [n, 1].
        multipliers: int8 [n, groups]; None where all are 1.
        minimums: float32 [n, 1]; None where there are none.
        zeros: int8 [n, groups]; None where all are 1.
    """

    values: Integers
    scales: Floats
    multipliers: Integers | None = None
    minimums: Floats | None = None
    zeros: Integers | None = None


@dataclass(frozen=True, slots=True)
class TensorType:
    """Storage type of a tensor's numbers.

    Attributes:
        name: as llama.cpp prints it.
        length: numbers in a block; nbytes: bytes of a block.
        decode: reads blocks [n, nbytes]; None where numbers are stored as such.
        storage: that stands for exactly the same numbers; None where numbers are stored as such.
    """

    name: str
    length: int
    nbytes: int
    decode: Callable[[Bytes], Blocks] | None = None
    storage: Storage | None = None


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
    found: Integers = unsigned.view(np.int8) - np.int8(offset)
    return found


def _nibbles(blocks: Bytes) -> Bytes:
    """The halves of the last 16 bytes of every block, [n, 32]."""
    return _fields(blocks[:, -16:], 4, 16)


def _q4_0(blocks: Bytes) -> Blocks:
    return Blocks(_less(_nibbles(blocks), 8), _half(blocks, 0))


def _q4_1(blocks: Bytes) -> Blocks:
    return Blocks(_less(_nibbles(blocks), 0), _half(blocks, 0), minimums=-_half(blocks, 2))


def _five_bits(blocks: Bytes) -> Bytes:
    fifth = np.unpackbits(blocks[:, -20:-16], axis=1, bitorder="little")
    found: Bytes = _nibbles(blocks) | fifth << np.uint8(4)
    return found


def _q5_0(blocks: Bytes) -> Blocks:
    return Blocks(_less(_five_bits(blocks), 16), _half(blocks, 0))


def _q5_1(blocks: Bytes) -> Blocks:
    return Blocks(_less(_five_bits(blocks), 0), _half(blocks, 0), minimums=-_half(blocks, 2))


def _q8_0(blocks: Bytes) -> Blocks:
    return Blocks(blocks[:, 2:].view(np.int8), _half(blocks, 0))


def _q2_k(blocks: Bytes) -> Blocks:
    shares = blocks[:, :16]
    multipliers, zeros = (shares & 15).astype(np.int8), (shares >> 4).astype(np.int8)
    values = _less(_fields(blocks[:, 16:80], 2, 32), 0)
    return Blocks(values, _half(blocks, 80), multipliers, _half(blocks, 82), zeros)


def _q3_k(blocks: Bytes) -> Blocks:
    low, high = _fields(blocks[:, 96:104], 4, 8), _fields(blocks[:, 104:108], 2, 4)
    shares = _less(low | high << np.uint8(4), 32)
    third = _fields(blocks[:, :32], 1, 32)  # a clear bit takes 4 away
    values = _less(_fields(blocks[:, 32:96], 2, 32) | third << np.uint8(2), 4)
    return Blocks(values, _half(blocks, 108), shares)


def _six_bits(shares: Bytes) -> tuple[Integers, Integers]:
    """The multipliers and the zeros of 8 groups in 12 bytes."""
    first, second, both = shares[:, :4], shares[:, 4:8], shares[:, 8:]
    multipliers = np.hstack((first & 63, both & 15 | first >> 6 << 4))
    zeros = np.hstack((second & 63, both >> 4 | second >> 6 << 4))
    return _less(multipliers, 0), _less(zeros, 0)


def _with_minimums(blocks: Bytes, values: Bytes) -> Blocks:
    multipliers, zeros = _six_bits(blocks[:, 4:16])
    return Blocks(_less(values, 0), _half(blocks, 0), multipliers, _half(blocks, 2), zeros)


def _q4_k(blocks: Bytes) -> Blocks:
    return _with_minimums(blocks, _fields(blocks[:, 16:], 4, 32))


def _q5_k(blocks: Bytes) -> Blocks:
    fifth = _fields(blocks[:, 16:48], 1, 32)
    return _with_minimums(blocks, _fields(blocks[:, 48:], 4, 32) | fifth << np.uint8(4))


def _q6_k(blocks: Bytes) -> Blocks:
    low, high = _fields(blocks[:, :128], 4, 64), _fields(blocks[:, 128:192], 2, 32)
    shares = blocks[:, 192:208].view(np.int8)
    return Blocks(_less(low | high << np.uint8(4), 32), _half(blocks, 208), shares)


def _iq4_nl(blocks: Bytes) -> Blocks:
    return Blocks(np.array(CODED, np.int8)[_nibbles(blocks)], _half(blocks, 0))


def _iq4_xs(blocks: Bytes) -> Blocks:
    low = np.stack((blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4), axis=2).reshape(-1, 8)
    high = np.stack([blocks[:, 2:4] >> shift & 3 for shift in (0, 2, 4, 6)], axis=2).reshape(-1, 8)
    shares = _less(low | high << np.uint8(4), 32)
    values = np.array(CODED, np.int8)[_fields(blocks[:, 8:], 4, 16)]
    return Blocks(values, _half(blocks, 0), shares)


def _mxfp4(blocks: Bytes) -> Blocks:
    # Half of the power of two that the byte stands for; codes are doubled.
    scales = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 128)
    return Blocks(np.array(_FP4, np.int8)[_nibbles(blocks)], scales.astype(np.float32))


def _alone(bits: int, *, minimums: bool = False, codes: bool = False) -> Storage:
    """Groups with float16 scales of their own."""
    return Storage(bits, 32, multipliers=False, minimums=minimums, codes=codes)


def _nested(bits: int, group: int) -> Storage:
    """Groups that share the scale and the minimum of a block."""
    return Storage(bits, group, zeros=True, multiplier=SIX_BITS, minimums=True)


# By the numbers of `enum ggml_type`.
TYPES: dict[int, TensorType] = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18, _q4_0, _alone(4)),
    3: TensorType("Q4_1", 32, 20, _q4_1, _alone(4, minimums=True)),
    6: TensorType("Q5_0", 32, 22, _q5_0, _alone(5)),
    7: TensorType("Q5_1", 32, 24, _q5_1, _alone(5, minimums=True)),
    8: TensorType("Q8_0", 32, 34, _q8_0, _alone(8)),
    10: TensorType("Q2_K", 256, 84, _q2_k, _nested(4, 16)),
    11: TensorType("Q3_K", 256, 110, _q3_k, Storage(4, 16, multiplier=BYTE)),
    12: TensorType("Q4_K", 256, 144, _q4_k, _nested(4, 32)),
    13: TensorType("Q5_K", 256, 176, _q5_k, _nested(5, 32)),
    14: TensorType("Q6_K", 256, 210, _q6_k, Storage(6, 16, multiplier=BYTE)),
    20: TensorType("IQ4_NL", 32, 18, _iq4_nl, _alone(4, codes=True)),
    23: TensorType("IQ4_XS", 256, 136, _iq4_xs, Storage(4, 32, multiplier=BYTE, codes=True)),
    30: TensorType("BF16", 1, 2),
    39: TensorType("MXFP4", 32, 17, _mxfp4, _alone(8)),
}
BY_NAME = {found.name: found for found in TYPES.values()}
# What other numbers mean, for messages.
OTHERS = {
    4: "Q4_2", 5: "Q4_3", 9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS",
    19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 34: "TQ1_0", 35: "TQ2_0",
    40: "NVFP4", 41: "Q1_0",
}  # fmt: skip
