"""Reads the container of GGUF, llama.cpp's format of models; versions 2 and 3, little-endian.

The format: the magic bytes, a version, the numbers of tensors and of pairs of metadata; the pairs;
the table of tensors; then their data, in the order of the table, each at a multiple of the
alignment. See docs/gguf.md of the ggml repository. Every length is held against what is left of the
file before anything of that length is made.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ingot.errors import CheckpointError
from ingot.models.checkpoints.mapped_file import MappedCheckpoint, TensorInfo, damaged
from ingot.models.gguf.types import OTHERS, TYPES, TensorType

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_HEADER_BYTES = 2**28  # the largest vocabularies of today take 20 MB
MAX_DIMS = 4
# Kinds of values in metadata: numbers of one size, texts, and arrays of either.
_SCALARS = {0: "u1", 1: "i1", 2: "u2", 3: "i2", 4: "u4", 5: "i4", 6: "f4", 7: "?", 10: "u8",
            11: "i8", 12: "f8"}  # fmt: skip
_TEXT, _ARRAY = 8, 9
_ALIGNMENT = "general.alignment"


class GgufFile(MappedCheckpoint):
    """An open GGUF file, whose data is read only when it is used.

    Attributes:
        metadata: texts, numbers and flags; arrays are lists of texts, or of numpy.
        tensors: by name; a shape is in the order of PyTorch, and a dtype is the name of a type.

    Raises:
        CheckpointError: a missing, truncated or damaged file, or one of another version.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            self.metadata, self.tensors = _parse(_Cursor(self))
        except BaseException:
            self.close()
            raise


class _Cursor:
    """A place in the header of a file."""

    def __init__(self, file: GgufFile) -> None:
        self.path, self.size = file.path, file.size
        self._file, self.at = file, 0

    def take(self, count: int) -> bytes:
        """The next bytes."""
        if count > self.size - self.at:
            raise damaged(self.path, f"is truncated: its header goes on beyond {self.size} bytes")
        if self.at + count > MAX_HEADER_BYTES:
            raise damaged(self.path, f"has a header of more than {MAX_HEADER_BYTES} bytes")
        self.at += count
        return self._file.bytes(self.at - count, self.at).tobytes()

    def u4(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def u8(self) -> int:
        return int.from_bytes(self.take(8), "little")

    def name(self) -> str:
        """The name of a key or of a tensor."""
        data = self.take(self.u8())
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise damaged(self.path, f"has text that is not UTF-8: {data[:40]!r}") from error

    def text(self) -> str:
        """A text of the metadata, in which U+FFFD stands for what is not UTF-8: the format does
        not check it, and some converters cut descriptions and tokens inside of a character."""
        return self.take(self.u8()).decode(errors="replace")

    def texts(self, count: int) -> list[str]:
        """So many of them, cut from one view: a vocabulary has hundreds of thousands."""
        found: list[str] = []
        data = self._file.bytes(self.at, min(self.size, MAX_HEADER_BYTES)).data
        at = 0
        for _ in range(count):
            begin = at + 8
            end = begin + int.from_bytes(data[at:begin], "little")
            if end > len(data):
                self.at += at
                self.text()  # raises
            found.append(str(data[begin:end], errors="replace"))
            at = end
        self.at += at
        return found

    def values(self, kind: int, count: int, key: str) -> Any:
        """So many values of a kind, one after the other."""
        if kind == _TEXT:
            if 8 * count > self.size - self.at:
                raise damaged(self.path, f"is truncated: {key} has {count} texts")
            return self.texts(count)
        if kind not in _SCALARS:
            what = "an array in an array" if kind == _ARRAY else f"values of kind {kind}"
            raise damaged(self.path, f"has {what} in {key}")
        dtype = np.dtype(f"<{_SCALARS[kind]}")
        return np.frombuffer(self.take(count * dtype.itemsize), dtype)

    def value(self, key: str) -> Any:
        """A value with its kind before it."""
        kind = self.u4()
        if kind == _ARRAY:
            kind = self.u4()
            return self.values(kind, self.u8(), key)
        (found,) = self.values(kind, 1, key)
        if isinstance(found, np.float32):
            return float(str(found))  # the shortest decimal: what was written, such as 1e-06
        return found if isinstance(found, str) else found.item()


def _parse(cursor: _Cursor) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
    _check_version(cursor)
    num_tensors, num_pairs = cursor.u8(), cursor.u8()
    metadata: dict[str, Any] = {}
    for _ in range(num_pairs):
        key = cursor.name()
        if key in metadata:
            raise damaged(cursor.path, f"has the key {key} twice")
        metadata[key] = cursor.value(key)
    table = [_entry(cursor) for _ in range(num_tensors)]
    return metadata, _placed(cursor, table, _alignment(cursor.path, metadata))


def _check_version(cursor: _Cursor) -> None:
    if cursor.take(4) != MAGIC:
        raise damaged(cursor.path, "is no GGUF file: it does not begin with those letters")
    raw = cursor.take(4)
    version = int.from_bytes(raw, "little")
    if version in VERSIONS:
        return
    supported = f"supported: versions {' and '.join(map(str, VERSIONS))}, little-endian"
    if version & 0xFFFF == 0:
        (version,) = struct.unpack(">I", raw)
        raise CheckpointError(
            f"{cursor.path} is a big-endian GGUF file of version {version}",
            hint=f"{supported}. Fetch the little-endian file, or convert the model again.",
        )
    which = "older" if version < VERSIONS[0] else "newer"
    raise CheckpointError(
        f"{cursor.path} is a GGUF file of version {version}, which is {which} than any known here",
        hint=f"{supported}. Convert the model again with "
        + ("a llama.cpp of today." if which == "older" else "this version, or update ingot."),
    )


def _alignment(path: Path, metadata: Mapping[str, Any]) -> int:
    alignment = metadata.get(_ALIGNMENT, 32)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise damaged(path, f"has {_ALIGNMENT} = {alignment!r:.40}, which is no power of two")
    return alignment


def _entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], TensorType, int]:
    """Name, shape, type and offset of a tensor."""
    name, num_dims = cursor.name(), cursor.u4()
    if num_dims > MAX_DIMS:
        raise damaged(cursor.path, f"has {num_dims} dimensions for the tensor {name}")
    shape = tuple(cursor.u8() for _ in range(num_dims))[::-1]
    kind, offset = cursor.u4(), cursor.u8()
    if kind not in TYPES:
        raise CheckpointError(
            f"{cursor.path} has the tensor {name} of type {OTHERS.get(kind, kind)}",
            hint=f"supported: {', '.join(found.name for found in TYPES.values())}; take the model "
            "in another of llama.cpp's quantizations, such as Q4_K_M or Q8_0",
        )
    if not shape or shape[-1] % TYPES[kind].length:
        raise damaged(
            cursor.path,
            f"has the tensor {name} {list(shape)}, whose rows {TYPES[kind].name} does not divide: "
            f"its blocks have {TYPES[kind].length} numbers",
        )
    return name, shape, TYPES[kind], offset


def _placed(
    cursor: _Cursor, table: list[tuple[str, tuple[int, ...], TensorType, int]], alignment: int
) -> dict[str, TensorInfo]:
    """Locates the tensors of the table. They have to follow one another without holes."""
    base, end = _aligned(cursor.at, alignment), 0
    tensors: dict[str, TensorInfo] = {}
    for name, shape, kind, offset in table:
        if name in tensors:
            raise damaged(cursor.path, f"has the tensor {name} twice")
        if offset != end:
            raise damaged(cursor.path, f"has a hole or an overlap before the tensor {name}")
        stop = offset + math.prod(shape) // kind.length * kind.nbytes
        if base + stop > cursor.size:
            raise damaged(
                cursor.path, f"is truncated: {cursor.size} bytes, and {name} ends at {base + stop}"
            )
        tensors[name] = TensorInfo(name, kind.name, shape, base + offset, base + stop)
        end = _aligned(stop, alignment)
    return tensors


def _aligned(place: int, alignment: int) -> int:
    return -(-place // alignment) * alignment
