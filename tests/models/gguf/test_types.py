"""Every type of GGUF against the package `gguf`: the same bits, whatever the blocks hold."""

from __future__ import annotations

from collections.abc import Callable

import gguf
import numpy as np
import pytest

from ingot.errors import CheckpointError
from ingot.models.checkpoints.checkpoint import scaled
from ingot.models.checkpoints.mapped_file import TensorInfo
from ingot.models.gguf.tensors import GgufMatrix, blocks_of_rows
from ingot.models.gguf.types import BY_NAME, TYPES, TensorType
from ingot.targets.cpu.pack import pack_quantized
from ingot.targets.cpu.unpack import unpack_quantized
from ingot.targets.cpu.weights import fits, packed_bytes
from tests.support.gguf_blocks import halves_of, random_blocks

IN_BLOCKS = {number: kind for number, kind in TYPES.items() if kind.decode}


def extreme_blocks(kind: TensorType, count: int) -> np.ndarray:
    """Blocks with the least and the largest fields, and scales of zero, of either sign, and those
    that are subnormal or the largest."""
    blocks = random_blocks(kind, count)
    blocks[::4], blocks[1::4] = 0, 255
    odd = np.array([0.0, -0.0, -1.5, 2.0**-24, -(2.0**-24), 65504.0, 1.0], np.float16)
    for shift, at in enumerate(halves_of(kind)):
        halves = odd[(np.arange(count) // 4 + shift) % len(odd)]
        blocks[:, at : at + 2] = halves.reshape(-1, 1).view(np.uint8)
    return blocks


def numbers(kind: TensorType, blocks: np.ndarray) -> np.ndarray:
    return blocks_of_rows(kind.decode(blocks), kind.length).numbers()


@pytest.mark.parametrize("number", IN_BLOCKS)
def test_numbers_are_those_of_llama_cpp(number: int) -> None:
    kind = TYPES[number]
    blocks = random_blocks(kind, 64)
    with np.errstate(over="ignore"):  # the largest power of two of MXFP4, times 12
        expected = gguf.dequantize(blocks.reshape(4, -1), gguf.GGMLQuantizationType(number))
        found = numbers(kind, blocks).reshape(4, -1)
    assert found.dtype == np.float32 and len(np.unique(found)) > 100
    assert np.array_equal(found.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("number", IN_BLOCKS)
def test_sizes_and_names_are_those_of_llama_cpp(number: int) -> None:
    kind, theirs = TYPES[number], gguf.GGMLQuantizationType(number)
    assert kind.name == theirs.name
    assert (kind.length, kind.nbytes) == gguf.GGML_QUANT_SIZES[theirs]


@pytest.mark.parametrize("number", IN_BLOCKS)
@pytest.mark.parametrize("make", [random_blocks, extreme_blocks])
def test_what_kernels_read_stands_for_the_numbers_of_llama_cpp(
    number: int, make: Callable[[TensorType, int], np.ndarray]
) -> None:
    kind = TYPES[number]
    assert kind.storage is not None
    columns = 2 * max(kind.length, 128)
    blocks = make(kind, 40 * columns // kind.length)
    if kind.name == "MXFP4":
        blocks[:, 0] = blocks[:, 0] % 12 + 118  # powers of two that float16 has
    form = kind.storage.of(columns)
    assert fits(columns, form)
    rows = blocks_of_rows(kind.decode(blocks), columns)
    packed = pack_quantized(scaled("a", rows, kind.storage), form)
    found = unpack_quantized(packed, (40, columns), form).dequantize().numpy()
    expected = gguf.dequantize(blocks.reshape(40, -1), gguf.GGMLQuantizationType(number))
    assert np.array_equal(found.view(np.uint32), expected.view(np.uint32))


EXACT_IN_SIZE = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS")


@pytest.mark.parametrize("name", EXACT_IN_SIZE)
def test_what_kernels_read_is_hardly_larger_than_the_file(name: str) -> None:
    kind = BY_NAME[name]
    assert kind.storage is not None
    stored = packed_bytes(64, 1024, kind.storage.of(1024))
    assert stored <= 1.03 * 64 * (1024 // kind.length * kind.nbytes)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("name", [kind.name for kind in IN_BLOCKS.values() if halves_of(kind)])
def test_scales_and_minimums_that_are_not_finite_are_named(name: str, value: float) -> None:
    kind = BY_NAME[name]
    for at in halves_of(kind):
        blocks = random_blocks(kind, 8)
        blocks[5, at : at + 2] = np.array([value], np.float16).view(np.uint8)
        stored = TensorInfo("blk.0.a", "U8", blocks.shape, 0, blocks.size)
        matrix = GgufMatrix(stored, name, kind.length)
        assert matrix.rows(lambda info, held=blocks: held, 0, 5).numbers().shape[0] == 5
        with pytest.raises(CheckpointError, match=r"blk\.0\.a holds values that are not finite"):
            matrix.rows(lambda info, held=blocks: held, 0, 8)


def test_a_changed_byte_changes_the_numbers() -> None:
    for number, kind in IN_BLOCKS.items():
        blocks = random_blocks(kind, 4)
        before = numbers(kind, blocks)
        blocks[1, kind.nbytes // 2] ^= 0x55
        after = numbers(kind, blocks)
        changed = (before != after).any(axis=1)
        assert changed.tolist() == [False, True, False, False], gguf.GGMLQuantizationType(number)
