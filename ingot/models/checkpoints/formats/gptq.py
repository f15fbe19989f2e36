"""GPTQ, as AutoGPTQ, GPTQModel and auto-round write it.

Of a matrix [O, K] in groups of G columns and b bits, with n = 32 / b integers in a word:

    qweight  int32 [K / n, O]       word r has inputs n r .. n r + n - 1, the first in the lowest
    qzeros   int32 [K / G, O / n]   word c has outputs n c .. n c + n - 1; the version `gptq`
                                    stores zero - 1, and `gptq_v2` zero
    scales   float [K / G, O]
    g_idx    int32 [K]              the group of each input

A number is (integer - zero) * scale. Symmetric models have the zero 2^(b - 1) everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ingot.artifact.formats import Storage
from ingot.errors import CheckpointError, Noting, OnFault, UnsupportedModelError
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
    g_idx: TensorInfo | None
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
        self._check_order(view)
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

    def _check_order(self, view: View) -> None:
        if self.g_idx is None:
            return
        order = view(self.g_idx)
        if not np.array_equal(order, np.arange(self.columns) // self.group):
            raise reordered(self.g_idx.name)


def reordered(name: str) -> CheckpointError:
    """The error of a matrix whose groups are not neighbours."""
    return CheckpointError(
        f"the tensor {name} puts columns into groups in an order of their activations (desc_act)",
        hint="supported: groups of neighbouring columns; quantize with desc_act false, or take the "
        "original model and --quantize int4",
    )


def find(settings: QuantizationKeys, infos: Infos, on_fault: OnFault) -> Iterator[QuantizedTensor]:
    """The matrices of a checkpoint."""
    bits = settings.choice("bits", BITS)
    group = settings.integer("group_size")
    form = settings.choice("checkpoint_format", tuple(VERSIONS), "gptq")
    if settings.flag("desc_act", False) and group != -1:
        raise UnsupportedModelError(
            "quantization_config has desc_act: columns are in an order of their activations",
            hint="supported: desc_act false; take such a model, or the original one and "
            "--quantize int4",
        )
    symmetric = settings.flag("sym", True)
    for stem, parts in LAYOUT.matrices(infos, on_fault):
        with Noting(on_fault):
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
    if order := parts.get(".g_idx"):
        faults.append(fault_of(order, (columns,), ("I32",)))
    if wrong := misshapen(*faults):
        raise wrong
    encoding = Gptq(qweight, scales, qzeros, order, bits, group, symmetric, added)
    return quantized(f"{stem}.weight", (outputs, columns), tuple(parts.values()), encoding)


TWO = "a quantized matrix has two dimensions: fetch the checkpoint again"
