"""compressed-tensors, as llm-compressor writes it: one format of several for a whole model.

pack-quantized     weight_packed int32 [O, K / n], n = 32 / b integers in a word, each plus
                   2^(b - 1); weight_scale [O, K / G]; weight_zero_point int32 [O / n, K / G]
int-quantized      weight int8 [O, K]; weight_scale [O, K / G]; weight_zero_point int8
float-quantized    weight e4m3 [O, K]; weight_scale for a matrix, a row or a block
nvfp4-pack-quantized   weight_packed u8 [O, K / 2] of e2m1; weight_scale e4m3 [O, K / 16];
                   weight_global_scale, which scales are divided by
mxfp4-pack-quantized   the same with scales u8 [O, K / 32], powers of two
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ingot.artifact.formats import Storage
from ingot.errors import CheckpointError, Noting, OnFault, UnsupportedModelError
from ingot.models.checkpoints.formats.float4 import float4_matrix
from ingot.models.checkpoints.formats.float8 import float8_matrix
from ingot.models.checkpoints.formats.float8 import layout as float8_layout
from ingot.models.checkpoints.formats.floats import (
    FLOATS,
    scales_of,
    signed,
    unpacked,
)
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
    Order,
    QuantizedTensor,
    View,
    quantized,
    storage_of,
)
from ingot.models.checkpoints.formats.settings import QuantizationKeys
from ingot.models.checkpoints.mapped_file import TensorInfo

UNREAD = (".input_scale", ".input_zero_point", ".input_global_scale", ".weight_shape")
ZEROS = ".weight_zero_point"
PACKED = MatrixParts((".weight_packed", ".weight_scale"), (ZEROS, ".weight_g_idx"), UNREAD)
INT8 = MatrixParts((".weight", ".weight_scale"), (ZEROS,), UNREAD, {".weight": ("I8",)})
FLOAT4 = MatrixParts((".weight_packed", ".weight_scale"), (".weight_global_scale",), UNREAD)
FLOAT8 = float8_layout(".weight_scale")
WORD = 32
BITS = (4, 8, 2)


@dataclass(frozen=True, slots=True)
class Scheme:
    """Scheme of quantized weights: keys of `weights` in a config group.

    `group` is the columns that share a scale, 0 for a whole row; `alike` the rows, 0 for all.
    `ordered` says that the columns of a group need not be neighbours.
    """

    bits: int
    symmetric: bool
    alike: int
    group: int
    ordered: bool


@dataclass(frozen=True, slots=True)
class PackedIntegers:
    """A matrix of integers, packed into words or not."""

    values: TensorInfo
    scales: TensorInfo
    zeros: TensorInfo | None
    columns: int
    bits: int
    group: int

    @property
    def label(self) -> str:
        zeros = " with zeros" if self.zeros else ""
        return f"compressed-tensors int{self.bits}-g{self.group}{zeros}"

    @property
    def storage(self) -> Storage | None:
        return storage_of(self.bits, self.columns, self.group, zeros=self.zeros is not None)

    def rows(self, view: View, first: int, last: int) -> Decoded:
        values = view(self.values)[first:last]
        if self.values.dtype == "I32":
            values = signed(unpacked(values, self.bits, 1), self.bits)[:, : self.columns]
        alike = self.scales.shape[0] == 1
        scales = scales_of(view, self.scales, slice(None) if alike else slice(first, last))
        if alike:
            scales = scales.reshape(1, 1).repeat(last - first, axis=0)
        return Decoded(values, self.group, scales, self._zeros(view, first, last))

    def _zeros(self, view: View, first: int, last: int) -> Array | None:
        if self.zeros is None:
            return None
        stored = view(self.zeros)
        if self.zeros.dtype == "I32":
            stored = signed(unpacked(stored, self.bits, 0), self.bits)
        zeros: Array = stored[first:last].astype(np.int16)
        return zeros


def find(settings: QuantizationKeys, infos: Infos, on_fault: OnFault) -> Iterator[QuantizedTensor]:
    """The matrices of a checkpoint."""
    form = settings.choice("format", tuple(FORMATS))
    sparse = settings.get("sparsity_config", {})
    if isinstance(sparse, dict) and sparse.get("format", "dense") != "dense":
        raise settings.wrong("sparsity_config", "none: weights that are all stored")
    scheme, (layout, matrix) = _scheme(settings, form), FORMATS[form]
    for stem, parts in layout.matrices(infos, on_fault):
        with Noting(on_fault):
            yield matrix(stem, parts, scheme)


def _scheme(settings: QuantizationKeys, form: str) -> Scheme:
    """Scheme that all config groups share."""
    groups = settings.inner("config_groups")
    if not groups.values:
        raise settings.wrong("config_groups", "at least one group")
    found = {}
    for name in groups.values:
        group = groups.inner(name)
        own = group.get("format", form)
        found[own, read_scheme(group.inner("weights"))] = name
    if len(found) == 1 and next(iter(found))[0] == form:
        return next(iter(found))[1]
    raise UnsupportedModelError(
        f"{settings.where} mixes formats: its groups {', '.join(found.values())} quantize weights "
        "in different ways",
        hint="supported: one format and one group size for all matrices that are quantized",
    )


def read_scheme(weights: QuantizationKeys) -> Scheme:
    """The scheme of one config group."""
    strategy = weights.choice("strategy", tuple(STRATEGIES), "tensor")
    alike, group = STRATEGIES[strategy]
    if strategy in ("group", "tensor_group"):
        group = weights.integer("group_size")
    if strategy == "block":
        size = weights.get("block_structure")
        if not isinstance(size, list) or len(size) != 2:
            raise weights.wrong("block_structure", "two whole numbers")
        alike, group = size
    bits, symmetric = weights.integer("num_bits"), weights.flag("symmetric", True)
    return Scheme(bits, symmetric, alike, group, weights.get("actorder") in ("group", True))


STRATEGIES = {
    "tensor": (0, 0),
    "channel": (1, 0),
    "group": (1, 0),
    "tensor_group": (1, 0),
    "block": (0, 0),
}


def _integers(stem: str, parts: Infos, scheme: Scheme) -> QuantizedTensor:
    packed = parts.get(".weight_packed")
    values = packed or parts[".weight"]
    scales, zeros = parts[".weight_scale"], parts.get(ZEROS)
    each = WORD // scheme.bits if packed and scheme.bits in BITS else 1
    if scheme.bits not in BITS or (not packed and scheme.bits != 8):
        raise CheckpointError(
            f"{stem}.weight is stored in {scheme.bits} bits", hint="supported: 4 and 8 bits"
        )
    if len(values.shape) != 2:
        raise CheckpointError(f"{values.name} has shape {list(values.shape)}", hint=TWO)
    rows, columns = values.shape[0], values.shape[1] * each
    group = scheme.group or columns
    if columns % group:
        raise undivided(stem, columns, group)
    blocks = (rows if scheme.alike else 1, columns // group)
    single = blocks == (1, 1) and scales.shape == (1,)
    faults = [
        fault_of(values, values.shape, ("I32",) if packed else ("I8",)),
        "" if single else fault_of(scales, blocks, FLOATS),
    ]
    if zeros and scheme.symmetric:
        zeros = None
    if zeros:
        stored = (-(-blocks[0] // each), blocks[1])
        faults.append(fault_of(zeros, stored, ("I32",) if packed else ("I8",)))
    elif not scheme.symmetric:
        faults.append(f"no {stem}{ZEROS} although symmetric is false")
    if groups := parts.get(".weight_g_idx"):
        faults.append(fault_of(groups, (columns,), ("I32",)))
    elif scheme.ordered and scheme.group:
        faults.append(f"no {stem}.weight_g_idx although actorder is group")
    if wrong := misshapen(*faults):
        raise wrong
    encoding = PackedIntegers(values, scales, zeros, columns, scheme.bits, group)
    order = Order(groups, group) if groups else None
    return quantized(f"{stem}.weight", (rows, columns), tuple(parts.values()), encoding, order)


def _float8(stem: str, parts: Infos, scheme: Scheme) -> QuantizedTensor:
    words = {(0, 0): "one scale a matrix", (1, 0): "one scale a row"}
    block = (scheme.alike, scheme.group)
    known = words.get(block, f"b{block[0]}x{block[1]}")
    return float8_matrix(
        stem, parts, ".weight_scale", block, f"compressed-tensors fp8 e4m3, {known}"
    )


def _float4(stem: str, parts: Infos, scheme: Scheme) -> QuantizedTensor:
    return float4_matrix(stem, parts, scheme.group)


Matrix = Callable[[str, Infos, Scheme], QuantizedTensor]
FORMATS: dict[str, tuple[MatrixParts, Matrix]] = {
    "pack-quantized": (PACKED, _integers),
    "int-quantized": (INT8, _integers),
    "float-quantized": (FLOAT8, _float8),
    "nvfp4-pack-quantized": (FLOAT4, _float4),
    "mxfp4-pack-quantized": (FLOAT4, _float4),
}
