"""The header of a weights file: safetensors whose tensors are padded to multiples of 64 bytes.

Stacks of matrices, of which a row reads only a few, come first: a tensor for all stacks of one
module, of bytes, from the beginning of a page on. Plans say where in it each stack lies.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod

import msgspec

from ingot.artifact.decoding import decode_json
from ingot.artifact.formats import stored_bytes
from ingot.artifact.plan import aligned
from ingot.errors import ArtifactError

ALIGNMENT = 64
PAGE = 4096  # what the system reads from the disk at once
MAX_HEADER_BYTES = 100_000_000  # the limit of safetensors itself
DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "I32": "int32", "I8": "int8"}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor of a weights file: its dtype as plans write it, and its place in the file."""

    dtype: str
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class TensorFile:
    """The header of a weights file: its tensors by name, and the hash of the header's bytes."""

    tensors: dict[str, TensorEntry]
    header_sha256: str


class _Raw(msgspec.Struct, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def holder_of(stack: str) -> str:
    """The tensor that holds a stack: the module that it belongs to."""
    return stack.rpartition(".")[0]


def in_file(
    weights: Mapping[str, tuple[str, int]], stacks: Collection[str]
) -> dict[str, tuple[str, int]]:
    """The tensors, as (dtype, bytes), that hold these weights, some of which are stacks."""
    held: dict[str, int] = {}
    for name in stacks:
        held[holder_of(name)] = held.get(holder_of(name), 0) + weights[name][1]
    others = {name: weight for name, weight in weights.items() if name not in stacks}
    return {name: ("int8", nbytes) for name, nbytes in held.items()} | others


def header(tensors: Mapping[str, tuple[str, int]], alignment: int = ALIGNMENT) -> bytes:
    """The header of a file of tensors in one dimension, given by name as (dtype, bytes).

    The writer follows it with the tensors in that order, each padded to a multiple of 64 bytes. The
    first begins at a multiple of `alignment`.
    """
    names = {dtype: name for name, dtype in DTYPES.items()}
    entries: dict[str, object] = {}
    offset = 0
    for tensor, (dtype, nbytes) in tensors.items():
        end = offset + aligned(nbytes)
        entries[tensor] = {
            "dtype": names[dtype],
            "shape": [(end - offset) // stored_bytes(dtype, 1)],
            "data_offsets": [offset, end],
        }
        offset = end
    text = msgspec.json.encode(entries)
    text = text.ljust(-(-(8 + len(text)) // alignment) * alignment - 8)
    return len(text).to_bytes(8, "little") + text


def read_header(fd: int, file: str) -> TensorFile:
    """Reads and checks the header: tensors are aligned and fill the file without hole or overlap.

    Reads no tensor. Raises ArtifactError, naming `file`.
    """
    size = os.fstat(fd).st_size
    length = int.from_bytes(os.pread(fd, 8, 0), "little")
    start = 8 + length
    if size < 8 or length > MAX_HEADER_BYTES or start > size:
        raise ArtifactError(f"{file}: a header of {length} bytes in a file of {size}")
    data = os.pread(fd, start, 0)
    if start % ALIGNMENT:
        raise ArtifactError(f"{file}: tensors start at byte {start}, not a multiple of {ALIGNMENT}")
    try:
        raw = msgspec.json.decode(data[8:], type=dict[str, msgspec.Raw])
        raw.pop("__metadata__", None)
        entries = {name: decode_json(value, _Raw) for name, value in raw.items()}
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ArtifactError(f"{file}: header: {error}") from error
    tensors = _place(entries, start, size, file)
    return TensorFile(tensors, hashlib.sha256(data).hexdigest())


def _place(entries: dict[str, _Raw], start: int, size: int, file: str) -> dict[str, TensorEntry]:
    tensors = {}
    end = start
    for name, raw in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        dtype = DTYPES.get(raw.dtype)
        begin, stop = (start + offset for offset in raw.data_offsets)
        if dtype is None:
            raise ArtifactError(f"{file}: tensor {name!r} has dtype {raw.dtype!r}")
        if begin != end or begin % ALIGNMENT or min(raw.shape, default=0) < 0:
            raise ArtifactError(f"{file}: tensor {name!r} begins at byte {begin}, expected {end}")
        if stop - begin != stored_bytes(dtype, prod(raw.shape)):
            raise ArtifactError(f"{file}: tensor {name!r} does not fit its shape")
        tensors[name] = TensorEntry(dtype, begin, stop - begin)
        end = stop
    if end != size:
        raise ArtifactError(f"{file}: {size} bytes, but its tensors end at byte {end}")
    return tensors
