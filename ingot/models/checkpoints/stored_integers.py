"""Integers of a checkpoint as artifacts store them: the same values, zeros and scales."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ingot.artifact.formats import Storage
from ingot.errors import CheckpointError
from ingot.models.checkpoints.formats.quantized import Array, Decoded
from ingot.ops.scaled import Scaled

LARGEST = np.finfo(np.float16).max


def scaled(name: str, rows: Decoded, storage: Storage) -> Scaled:
    """Decoded rows of a matrix in the storage that its encoding names.

    Raises:
        CheckpointError: a scale that float16 does not hold exactly.
    """
    each = -(-rows.group // storage.group)
    scales = _exact(name, rows).repeat(each, axis=-1)
    zeros = None if rows.zeros is None else _tensor(rows.zeros.astype(np.int8).repeat(each, -1))
    return Scaled(_tensor(rows.values), None, _tensor(scales), zeros, block=storage.group)


def _exact(name: str, rows: Decoded) -> Array:
    """The scales, which float16 holds; 0 for groups of zeros, which need none."""
    scales = rows.scales
    rounded = np.clip(scales, -LARGEST, LARGEST).astype(np.float16).astype(np.float32)
    if np.array_equal(rounded, scales):
        return scales
    groups = rows.values.reshape(*scales.shape, rows.group)
    zeros = 0 if rows.zeros is None else rows.zeros[..., None]
    empty = (groups == zeros).all(-1)
    wrong = (rounded != scales) & ~empty
    if not wrong.any():
        return np.where(empty, np.float32(0), scales)
    raise CheckpointError(
        f"{name} has the scale {float(scales[wrong][0]):.9g}, which float16 cannot hold exactly",
        hint="Give --dequantize, which reads the numbers that the integers stand for.",
    )


def _tensor(array: Array) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))
