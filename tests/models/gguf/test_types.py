"""Every type of GGUF against the package `gguf`: the same bits, whatever the blocks hold."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from ingot.models.gguf.types import TYPES, TensorType

IN_BLOCKS = {number: kind for number, kind in TYPES.items() if kind.decode}
# Where the float16 of a block lie.
HALVES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "MXFP4": ()}
TWO = ("Q4_1", "Q5_1", "Q4_K", "Q5_K")


def random_blocks(kind: TensorType, count: int) -> np.ndarray:
    """Blocks of random bytes with finite scales."""
    rng = np.random.default_rng(kind.nbytes)
    blocks = rng.integers(0, 256, (count, kind.nbytes), dtype=np.uint8)
    for at in HALVES.get(kind.name, (0, 2) if kind.name in TWO else (0,)):
        halves = rng.standard_normal((count, 1)).astype(np.float16)
        blocks[:, at : at + 2] = halves.view(np.uint8)
    return blocks


@pytest.mark.parametrize("number", IN_BLOCKS)
def test_numbers_are_those_of_llama_cpp(number: int) -> None:
    kind = TYPES[number]
    blocks = random_blocks(kind, 64)
    with np.errstate(over="ignore"):  # the largest power of two of MXFP4, times 12
        expected = gguf.dequantize(blocks.reshape(4, -1), gguf.GGMLQuantizationType(number))
        found = kind.decode(blocks).numbers().reshape(4, -1)
    assert found.dtype == np.float32 and len(np.unique(found)) > 100
    assert np.array_equal(found.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("number", IN_BLOCKS)
def test_sizes_and_names_are_those_of_llama_cpp(number: int) -> None:
    kind, theirs = TYPES[number], gguf.GGMLQuantizationType(number)
    assert kind.name == theirs.name
    assert (kind.length, kind.nbytes) == gguf.GGML_QUANT_SIZES[theirs]


@pytest.mark.parametrize("number", [n for n, kind in IN_BLOCKS.items() if kind.bits])
def test_integers_and_float16_scales_hold_what_is_kept(number: int) -> None:
    kind = TYPES[number]
    decoded = kind.decode(random_blocks(kind, 512))
    low = -(1 << (kind.bits - 1))
    assert decoded.minima is None and decoded.values.min() >= low
    assert decoded.values.max() <= -low - 1 and decoded.scales.shape == (512, 1)
    if kind.name != "MXFP4":  # a power of two, in the range of float16 or not
        assert np.array_equal(decoded.scales.astype(np.float16).astype(np.float32), decoded.scales)


def test_a_changed_byte_changes_the_numbers() -> None:
    for number, kind in IN_BLOCKS.items():
        blocks = random_blocks(kind, 4)
        before = kind.decode(blocks).numbers()
        blocks[1, kind.nbytes // 2] ^= 0x55
        after = kind.decode(blocks).numbers()
        changed = (before != after).any(axis=1)
        assert changed.tolist() == [False, True, False, False], gguf.GGMLQuantizationType(number)
