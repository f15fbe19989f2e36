"""Blocks of GGUF types, random but for their scales: for types that `gguf` does not write."""

from __future__ import annotations

import gguf
import numpy as np

from ingot.models.gguf.types import TensorType

# Where the float16 of a block lie.
_HALVES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "MXFP4": ()}
_TWO = ("Q4_1", "Q5_1", "Q4_K", "Q5_K")


def halves_of(kind: TensorType) -> tuple[int, ...]:
    """Places of the scale and the minimum of a block."""
    return _HALVES.get(kind.name, (0, 2) if kind.name in _TWO else (0,))


def random_blocks(kind: TensorType, count: int) -> np.ndarray:
    """Blocks of random bytes with finite scales."""
    rng = np.random.default_rng(kind.nbytes)
    blocks = rng.integers(0, 256, (count, kind.nbytes), dtype=np.uint8)
    for at in halves_of(kind):
        blocks[:, at : at + 2] = _bytes(rng.standard_normal((count, 1)))
    return blocks


def blocks_like(values: np.ndarray, kind: TensorType) -> np.ndarray:
    """Rows of noise in blocks, about as large as these values and with a mean of 0."""
    rows = len(values)
    blocks = np.random.default_rng(values.size).integers(
        0, 256, (values.size // kind.length, kind.nbytes), dtype=np.uint8
    )
    number = gguf.GGMLQuantizationType[kind.name]

    def numbers(*scales: float) -> np.ndarray:
        for at, scale in zip(halves_of(kind), scales, strict=False):
            blocks[:, at : at + 2] = _bytes(np.array([[scale]]))
        return gguf.dequantize(blocks, number)

    both = (1.0, -numbers(1, 0).mean() / numbers(0, 1).mean()) if len(halves_of(kind)) > 1 else (1,)
    size = values.std() / numbers(*both).std()
    numbers(*(size * scale for scale in both))
    return blocks.reshape(rows, -1)


def _bytes(scales: np.ndarray) -> np.ndarray:
    return scales.astype(np.float16).view(np.uint8)
