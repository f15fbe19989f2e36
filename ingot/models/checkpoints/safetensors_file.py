"""Reads one safetensors file through a memory map.

The format: 8 bytes with the length of the header; the header as JSON, which maps each name to its
dtype, shape and data_offsets; then the data, without holes.
"""

from __future__ import annotations

import math
import mmap
from dataclasses import replace
from pathlib import Path
from typing import Any

from ingot.errors import ConfigError
from ingot.models.checkpoints.mapped_file import MappedCheckpoint, TensorInfo, damaged
from ingot.models.json_object import parse_json_object

# The format's own limit.
MAX_HEADER_BYTES = 100_000_000
# Bytes of one element for every dtype that the format knows.
ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip


class SafetensorsFile(MappedCheckpoint):
    """An open file, whose data is read only when it is used.

    The names of its tensors get a prefix, where it is one of several that have the same.

    Raises:
        CheckpointError: a missing, truncated or damaged file.
    """

    def __init__(self, path: Path, prefix: str = "") -> None:
        super().__init__(path)
        found = _parse_header(path, self._map, self.size).values()
        named = (replace(info, name=prefix + info.name) for info in found)
        self.tensors = {info.name: info for info in named}


def _parse_header(path: Path, data: mmap.mmap, size: int) -> dict[str, TensorInfo]:
    length = int.from_bytes(data[:8], "little")
    if length > min(MAX_HEADER_BYTES, size - 8):
        raise damaged(path, f"says that its header is {length} bytes long, in {size} bytes")
    try:
        header = parse_json_object(data[8 : 8 + length], f"the header of {path}")
    except ConfigError as error:
        raise damaged(path, f"has a corrupt header: {error.found}") from error
    header.pop("__metadata__", None)
    base = 8 + length
    tensors = [_parse_entry(path, name, entry, base) for name, entry in header.items()]
    end = base
    for info in sorted(tensors, key=lambda info: (info.start, info.stop)):
        if info.start != end:
            raise damaged(path, f"has a hole or an overlap before the tensor {info.name}")
        end = info.stop
    if end > size:
        raise damaged(path, f"is truncated: {size} bytes of {end}")
    if end < size:
        raise damaged(path, f"has {size - end} bytes that belong to no tensor")
    return {info.name: info for info in tensors}


def _parse_entry(path: Path, name: str, entry: Any, base: int) -> TensorInfo:
    corrupt = damaged(path, f"has a corrupt header entry for the tensor {name}")
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise corrupt
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES or not _sizes(shape):
        raise corrupt
    if not _sizes(offsets) or len(offsets) != 2:
        raise corrupt
    if offsets[1] - offsets[0] != math.prod(shape) * ITEM_BYTES[dtype]:
        raise corrupt
    return TensorInfo(name, dtype, tuple(shape), base + offsets[0], base + offsets[1])


def _sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(v) is int and 0 <= v < 2**63 for v in values)
