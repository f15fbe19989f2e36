"""Reads the container of `torch.save`: a zip archive whose members lie in it uncompressed.

`data.pkl` says which tensors there are, and `data/<key>` holds the numbers of each storage. They
are mapped where they lie. Files of before 2020, which are no archives, are refused.
"""

from __future__ import annotations

import math
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path

from ingot.errors import CheckpointError
from ingot.models.checkpoints.mapped_file import MappedCheckpoint, TensorInfo, damaged
from ingot.models.checkpoints.safetensors_file import ITEM_BYTES
from ingot.models.pth.records import MAX_BYTES, Refused, Storage, TensorRecord, read_records

_LOCAL = struct.Struct("<4s22xHH")  # of a member: signature, lengths of its name and of more
_SIGNATURE = b"PK\x03\x04"
_ENCRYPTED = 0x1
SAVE_ANEW = (
    "Where you trust it, save it anew with PyTorch: tensors = torch.load(old, map_location='cpu', "
    "weights_only=True); torch.save({n: t.contiguous() for n, t in tensors.items()}, new)."
)


class PthFile(MappedCheckpoint):
    """An open file of `torch.save`, whose data is read only when it is used.

    Raises:
        CheckpointError: a missing or damaged file, an archive that is compressed, and a pickle that
            holds anything but tensors, whose numbers lie in order.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            members = self._members()
            records = self._records(members)
            self.tensors = {name: self._info(name, r, members) for name, r in records.items()}
        except BaseException:
            self.close()
            raise

    def _members(self) -> dict[str, tuple[int, int]]:
        """Where each member's bytes lie, by its name without the archive's own."""
        if self._map[:4] != _SIGNATURE:
            raise CheckpointError(
                f"{self.path} is no zip archive, as torch.save writes one since 1.6", hint=SAVE_ANEW
            )
        try:
            with self.path.open("rb") as file, zipfile.ZipFile(file) as archive:
                listed = archive.infolist()
        except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError) as error:
            raise damaged(self.path, f"is no whole zip archive: {error}") from error
        found: dict[str, tuple[int, int]] = {}
        for member in listed:
            name = member.filename.partition("/")[2]
            if name in found:
                raise damaged(self.path, f"has the member {name!r:.60} twice")
            found[name] = self._place(member)
        return found

    def _place(self, member: zipfile.ZipInfo) -> tuple[int, int]:
        """The first byte of a member and the end of it."""
        plain = member.compress_type == zipfile.ZIP_STORED and not member.flag_bits & _ENCRYPTED
        if not plain or member.compress_size != member.file_size:
            raise CheckpointError(
                f"{self.path} has the member {member.filename!r:.60}, which is compressed",
                hint=SAVE_ANEW,
            )
        begin = member.header_offset
        if not 0 <= begin <= self.size - _LOCAL.size:
            raise damaged(self.path, f"has the member {member.filename!r:.60} beyond its end")
        signature, name, more = _LOCAL.unpack(self._map[begin : begin + _LOCAL.size])
        start = begin + _LOCAL.size + name + more
        if signature != _SIGNATURE or start + member.file_size > self.size:
            raise damaged(self.path, f"has the member {member.filename!r:.60} beyond its end")
        return start, start + member.file_size

    def _records(self, members: Mapping[str, tuple[int, int]]) -> dict[str, TensorRecord]:
        if "data.pkl" not in members:
            raise CheckpointError(
                f"{self.path} has no data.pkl: it is no file of torch.save",
                hint="give a model's file as torch.save has written it",
            )
        start, stop = members["data.pkl"]
        if stop - start > MAX_BYTES:
            raise damaged(self.path, f"has a data.pkl of {stop - start} bytes")
        begin, end = members.get("byteorder", (0, 0))
        if self._map[begin:end] not in (b"", b"little"):
            raise CheckpointError(f"{self.path} has numbers in big-endian order", hint=SAVE_ANEW)
        try:
            return read_records(self._map[start:stop])
        except Refused as error:
            raise CheckpointError(
                f"{self.path}: its data.pkl {error}",
                hint="A pickle can run code, so nothing is read but tensors by their names, as "
                f"BlinkDL's RWKV models have them. {SAVE_ANEW}",
            ) from error

    def _info(
        self, name: str, record: TensorRecord, members: Mapping[str, tuple[int, int]]
    ) -> TensorInfo:
        storage, width = record.storage, ITEM_BYTES[record.storage.dtype]
        start, stop = self._storage(name, storage, members)
        first = start + record.offset * width
        last = first + math.prod(record.shape) * width
        if last > stop:
            raise damaged(self.path, f"has the tensor {name} beyond the end of its storage")
        if not _is_in_order(record):
            raise CheckpointError(
                f"{self.path} has the tensor {name} in strides of {record.strides}", hint=SAVE_ANEW
            )
        return TensorInfo(name, storage.dtype, record.shape, first, last)

    def _storage(
        self, name: str, storage: Storage, members: Mapping[str, tuple[int, int]]
    ) -> tuple[int, int]:
        place = members.get(f"data/{storage.key}")
        if place is None:
            raise damaged(self.path, f"lacks the storage {storage.key!r:.40} of the tensor {name}")
        if place[1] - place[0] < storage.count * ITEM_BYTES[storage.dtype]:
            raise damaged(self.path, f"has too small a storage for the tensor {name}")
        return place


def _is_in_order(record: TensorRecord) -> bool:
    """True if the numbers of a tensor lie row by row, without gaps."""
    step = 1
    for size, stride in zip(reversed(record.shape), reversed(record.strides), strict=True):
        if size != 1 and stride != step:
            return not math.prod(record.shape)
        step *= size
    return True
