"""The weights of an artifact as its kernels read them, and as they should be."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided
from torch import Tensor

from ingot.artifact.formats import Format
from ingot.artifact.manifest import TargetEntry
from ingot.artifact.plan import Buffer, Plan
from ingot.artifact.reader import Artifact, weights_name
from ingot.compiler.interpret import Read, Value
from ingot.compiler.quantization.found import RANGES
from ingot.compiler.quantization.search import quantize_rows
from ingot.errors import ArtifactError
from ingot.ops.dtypes import TORCH_DTYPES
from ingot.ops.scaled import Scaled, stack, whole_parts
from ingot.targets.target import kind_of, target_named

# Rounding for the inputs of a matrix leaves more error in a group than the search for the weights
# alone, in exchange for less in the results. Beyond this many times as much, in energy, and beyond
# this share of the group's own energy, a group is damaged.
CHOSEN = 16.0
SHARE = 0.5
# In steps of its group: so much farther than the nearest number of its grid an integer may be. A
# sum that is added up in another order may end at another scale.
SLACK = 0.25


# A parameter as the integers that its checkpoint stores; None for other parameters.
Integers = Callable[[str], Scaled | None]


class StoredWeights:
    """The packed weights of a target, by the names of its plan; open until it is closed."""

    def __init__(self, artifact: Artifact, entry: TargetEntry, plan: Plan) -> None:
        self.plan = plan
        fd, self._header = artifact.open_weights(entry.layout)
        try:
            self._map = mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
        finally:
            os.close(fd)
        self._file = weights_name(entry.layout)
        self.value = kind_of(target_named(entry.name)).unpacked(plan, self.packed)
        self._check()

    def packed(self, name: str) -> Tensor:
        """The bytes of a weight, uint8, with what fills them up; of a stack those of each matrix,
        up to where the next begins. A view of the file."""
        buffer = self.plan.buffer(name)
        entry = self._header.tensors[buffer.base or name]
        begin = buffer.offset if buffer.base else 0
        raw = np.frombuffer(self._map, np.uint8, entry.nbytes - begin, entry.offset + begin)
        # Never written: torch has no read-only tensors, and would warn.
        address = raw.ctypes.data
        assert address % 64 == 0, "tensors of the file are aligned"
        if not buffer.base:
            return _view(raw)
        count, size = int(buffer.shape[0]), buffer.row_stride - begin
        return _view(as_strided(raw, (count, size), (buffer.row_stride, 1), writeable=False))

    def read(self, buffer: Buffer) -> Value:
        """A weight as kernels read it."""
        return self.value(buffer)

    def addresses(self) -> list[int]:
        """Address of each weight, in the order of the plan."""
        return [self.packed(buffer.name).data_ptr() for buffer in self.plan.of_kind("weight")]

    def _check(self) -> None:
        for buffer in self.plan.of_kind("weight"):
            if (buffer.base or buffer.name) not in self._header.tensors:
                raise ArtifactError(f"{self._file} lacks {buffer.name!r}, which the plan has")


def _view(raw: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> Tensor:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(raw)


def wanted(buffer: Buffer, read: Read, integers: Integers | None = None) -> Value | None:
    """Expected weight by the parameters of the model; None for integers that a compile has
    chosen, of which `damage` tells. `integers` gives those of a quantized checkpoint."""
    if not buffer.format.is_scaled:
        return _whole(buffer, read).to(TORCH_DTYPES[buffer.dtype])
    kept = [integers(name) for name in sources_of(buffer)] if integers else []
    whole = [each for each in kept if each is not None and _is_in(each, buffer.format)]
    return stack(whole) if whole else None


def _is_in(matrix: Scaled, form: Format) -> bool:
    """Tells whether a format stores integers as they are."""
    parts = {
        "zeros": form.zeros,
        "multipliers": form.has_multipliers,
        "minimums": form.minimums,
    }
    alike = all((getattr(matrix, name) is not None) == has for name, has in parts.items())
    return alike and (matrix.block, matrix.group) == (form.block, form.group)


def damage(
    buffer: Buffer, stored: Scaled, read: Read, *, calibrated: bool
) -> tuple[Tensor, Tensor]:
    """For integers that a compile has chosen: (the numbers that they stand for, those of the
    model), the latter where a group is damaged, and elsewhere the former.

    A group is damaged that loses far more than it must, or, unless GPTQ has chosen the integers, if
    one of them is not the nearest.
    """
    rows = _whole(buffer, read).float()
    found, searched = stored.dequantize(), quantize_rows(rows, buffer.format).dequantize()
    size, columns = buffer.format.group, rows.shape[-1]
    errors, least, energy = (
        whole_parts(x.square(), size).sum(-1, keepdim=True)
        for x in (found - rows, searched - rows, rows)
    )
    typical = least.mean(-2, keepdim=True)
    damaged = errors > torch.maximum(CHOSEN * torch.maximum(least, typical), SHARE * energy)
    if not calibrated:
        nearest, step = _nearest(rows, stored, buffer.format.bits)
        farther = (found - rows).abs() - (nearest - rows).abs() > SLACK * step
        damaged |= whole_parts(farther, size).any(-1, keepdim=True)
    return found, torch.where(damaged.expand(-1, -1, size).flatten(1)[:, :columns], rows, found)


def _nearest(rows: Tensor, stored: Scaled, bits: int) -> tuple[Tensor, Tensor]:
    """The numbers nearest to `rows` that integers could stand for beside what is stored, and the
    distance between two."""
    low, high = RANGES[bits]
    columns = rows.shape[-1]
    step = stored.scales.repeat_interleave(stored.block, -1)[..., :columns]
    offset = torch.zeros_like(rows)
    if stored.zeros is not None:
        offset = step * stored.zeros.repeat_interleave(stored.group, -1)[..., :columns]
    if stored.multipliers is not None:
        step = step * stored.multipliers.repeat_interleave(stored.group, -1)[..., :columns]
    units = torch.where(step == 0, 0.0, (rows + offset) / step)
    return units.round().clamp(low, high) * step - offset, step.abs()


def sources_of(buffer: Buffer) -> tuple[str, ...]:
    """The model's parameters that a weight is stacked from."""
    return buffer.sources or (buffer.name,)


def _whole(buffer: Buffer, read: Read) -> Tensor:
    return torch.cat([read(name) for name in sources_of(buffer)])
