"""GPTQ, as AutoGPTQ, GPTQModel and auto-round write it.

Of a matrix [O, K] in groups of G columns and b bits, with n = 32 / b integers in a word:

    qweight  int32 [K / n, O]       word r has inputs n r .. n r + n - 1, the first in the lowest
    qzeros   int32 [K / G, O / n]   word c has outputs n c .. n c + n - 1; the version `gptq`
                                    stores zero - 1, and `gptq_v2` zero
    scales   float [K / G, O]
    g_idx    int32 [K]              the group of each input; with desc_act any

A number is (integer - zero) * scale. Symmetric models have the zero 2^(b - 1) everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ingot.artifact.formats import Storage
from ingot.errors import CheckpointError, Noting, OnFault
from ingot.models.checkpoints.formats.floats import FLOATS, scales_of, signed, unpacked
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
    Order,
    QuantizedTensor,
    View,
    quantized,
    storage_of,
)
from ingot.models.checkpoints.formats.settings import QuantizationKeys
from ingot.models.checkpoints.mapped_file import TensorInfo

LAYOUT = MatrixParts((".qweight", ".scales"), (".qzeros", ".g_idx"))
BITS = (4, 8, 2)
VERSIONS = {"gptq": 1, "gptq_v2": 0}  # what is added to a stored zero
WORD = 32


@dataclass(frozen=True, slots=True)
class Gptq:
    """A matrix of GPTQ; `added` is what stored zeros lack."""

    qweight: TensorInfo
    scales: TensorInfo
    qzeros: TensorInfo | None
    bits: int
    group: int
    symmetric: bool
    added: int

    @property
    def label(self) -> str:
        return f"gptq int{self.bits}-g{self.group}" + ("" if self.symmetric else " with zeros")

    @property
    def columns(self) -> int:
        return self.qweight.shape[0] * (WORD // self.bits)

    @property
    def storage(self) -> Storage | None:
        return storage_of(self.bits, self.columns, self.group, zeros=not self.symmetric)

    def rows(self, view: View, first: int, last: int) -> Decoded:
        words = np.ascontiguousarray(view(self.qweight)[:, first:last])
        values = signed(unpacked(words, self.bits, 0).T, self.bits)
        scales = scales_of(view, self.scales, (slice(None), slice(first, last))).T
        zeros = self._zeros(view, first, last)
        return Decoded(np.ascontiguousarray(values), self.group, scales, zeros)

    def _zeros(self, view: View, first: int, last: int) -> Array | None:
        """Zeros less 2^(bits - 1), [R, K / group]."""
        if self.qzeros is None:
            return None
        stored = unpacked(view(self.qzeros), self.bits, 1)[:, first:last].T.astype(np.int16)
        zeros: Array = stored + self.added - (1 << (self.bits - 1))
        if not self.symmetric and zeros.max() < 1 << (self.bits - 1):
            return zeros
        if self.symmetric and not zeros.any():
            return None
        meant = f"{1 << (self.bits - 1)} alone" if self.symmetric else f"0 to {2**self.bits - 1}"
        raise CheckpointError(
            f"the tensor {self.qzeros.name} holds zero points out of range: supported are {meant}",
            hint="check sym and checkpoint_format in the quantization_config of config.json",
        )


def find(settings: QuantizationKeys, infos: Infos, on_fault: OnFault) -> Iterator[QuantizedTensor]:
    """The matrices of a checkpoint."""
    bits = settings.choice("bits", BITS)
    group = settings.integer("group_size")
    form = settings.choice("checkpoint_format", tuple(VERSIONS), "gptq")
    symmetric = settings.flag("sym", True)
    ordered = settings.flag("desc_act", False) and group != -1
    for stem, parts in LAYOUT.matrices(infos, on_fault):
        with Noting(on_fault):
            if ordered and ".g_idx" not in parts:
                raise CheckpointError(
                    f"the checkpoint has no {stem}.g_idx, although desc_act is true",
                    hint="set desc_act in config.json to false, or fetch the checkpoint again",
                )
            yield _matrix(stem, parts, bits, group, symmetric, VERSIONS[form])


def _matrix(
    stem: str, parts: Infos, bits: int, group: int, symmetric: bool, added: int
) -> QuantizedTensor:
    qweight, scales, qzeros = parts[".qweight"], parts[".scales"], parts.get(".qzeros")
    if len(qweight.shape) != 2:
        raise CheckpointError(f"{qweight.name} has shape {list(qweight.shape)}", hint=TWO)
    each = WORD // bits
    columns, outputs = qweight.shape[0] * each, qweight.shape[1]
    group = columns if group == -1 else group
    if group < 1 or columns % group:
        raise undivided(stem, columns, group)
    groups = columns // group
    faults = [
        fault_of(qweight, qweight.shape, ("I32",)),
        fault_of(scales, (groups, outputs), FLOATS),
    ]
    if qzeros is not None:
        faults.append(fault_of(qzeros, (groups, -(-outputs // each)), ("I32",)))
    elif not symmetric:
        faults.append(f"no {stem}.qzeros although sym is false")
    if g_idx := parts.get(".g_idx"):
        faults.append(fault_of(g_idx, (columns,), ("I32",)))
    if wrong := misshapen(*faults):
        raise wrong
    order = Order(g_idx, group) if g_idx else None
    encoding = Gptq(qweight, scales, qzeros, bits, group, symmetric, added)
    return quantized(f"{stem}.weight", (outputs, columns), tuple(parts.values()), encoding, order)


TWO = "a quantized matrix has two dimensions: fetch the checkpoint again"
