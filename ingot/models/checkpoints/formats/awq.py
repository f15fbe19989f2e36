"""AWQ in the version `gemm`, as AutoAWQ writes it.

Of a matrix [O, K] in groups of G columns:

    qweight  int32 [K, O / 8]       output 8 c + j is the nibble ORDER[j] of word c
    qzeros   int32 [K / G, O / 8]   in the same order
    scales   float [K / G, O]

A number is (integer - zero) * scale.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ingot.artifact.formats import Storage
from ingot.errors import CheckpointError, Noting, OnFault
from ingot.models.checkpoints.formats.floats import FLOATS, scales_of, signed, unpacked
from ingot.models.checkpoints.formats.gptq import TWO
from ingot.models.checkpoints.formats.parts import (
    Infos,
    MatrixParts,
    fault_of,
    misshapen,
    undivided,
)
from ingot.models.checkpoints.formats.quantized import (
    Array,
    Decoded,
    QuantizedTensor,
    View,
    quantized,
    storage_of,
)
from ingot.models.checkpoints.formats.settings import QuantizationKeys
from ingot.models.checkpoints.mapped_file import TensorInfo

LAYOUT = MatrixParts((".qweight", ".qzeros", ".scales"))
BITS = 4
ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
EACH = 8  # outputs of a word


@dataclass(frozen=True, slots=True)
class Awq:
    """A matrix of AWQ."""

    qweight: TensorInfo
    qzeros: TensorInfo
    scales: TensorInfo
    group: int

    @property
    def label(self) -> str:
        return f"awq int4-g{self.group} with zeros"

    @property
    def storage(self) -> Storage | None:
        return storage_of(BITS, self.qweight.shape[0], self.group, zeros=True)

    def rows(self, view: View, first: int, last: int) -> Decoded:
        values = _outputs(view(self.qweight), first, last)
        zeros = _outputs(view(self.qzeros), first, last).astype(np.int16)
        scales = scales_of(view, self.scales, (slice(None), slice(first, last))).T
        return Decoded(values, self.group, scales, zeros)


def _outputs(stored: Array, first: int, last: int) -> Array:
    """Words [n, O / 8] -> outputs first..last of them, less 8, int8 [R, n]."""
    words = slice(first // EACH, -(-last // EACH))
    mixed = unpacked(np.ascontiguousarray(stored[:, words]), BITS, 1)
    ordered = mixed.reshape(len(stored), -1, EACH)[..., ORDER].reshape(len(stored), -1)
    start = first - words.start * EACH
    return np.ascontiguousarray(signed(ordered[:, start : start + last - first].T, BITS))


def find(settings: QuantizationKeys, infos: Infos, on_fault: OnFault) -> Iterator[QuantizedTensor]:
    """The matrices of a checkpoint."""
    settings.choice("bits", (BITS,), BITS)
    group = settings.integer("group_size", 128)
    version = str(settings.get("version", "gemm")).lower()
    if version != "gemm":
        raise settings.wrong("version", "gemm; other versions order weights for one kernel")
    for stem, parts in LAYOUT.matrices(infos, on_fault):
        with Noting(on_fault):
            yield _matrix(stem, parts, group)


def _matrix(stem: str, parts: Infos, group: int) -> QuantizedTensor:
    qweight, qzeros, scales = (parts[end] for end in LAYOUT.needed)
    if len(qweight.shape) != 2:
        raise CheckpointError(f"{qweight.name} has shape {list(qweight.shape)}", hint=TWO)
    columns, outputs = qweight.shape[0], qweight.shape[1] * EACH
    group = columns if group == -1 else group
    if group < 1 or columns % group:
        raise undivided(stem, columns, group)
    groups = columns // group
    wrong = misshapen(
        fault_of(qweight, qweight.shape, ("I32",)),
        fault_of(qzeros, (groups, outputs // EACH), ("I32",)),
        fault_of(scales, (groups, outputs), FLOATS),
    )
    if wrong:
        raise wrong
    encoding = Awq(qweight, qzeros, scales, group)
    return quantized(f"{stem}.weight", (outputs, columns), tuple(parts.values()), encoding)
