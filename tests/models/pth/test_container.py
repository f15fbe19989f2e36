"""The container: tensors are mapped where they lie, and hostile files are refused by name."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from ingot.errors import CheckpointError
from ingot.models.pth.container import PthFile

TENSORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    torch.save(TENSORS, tmp_path / "model.pth")
    return tmp_path / "model.pth"


def rewritten(path: Path, change: Callable[[str, bytes], bytes | None], **options: object) -> Path:
    """The archive with members changed or left out."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    new = path.with_name("new.pth")
    with zipfile.ZipFile(new, "w", **options) as archive:
        for name, data in members.items():
            if (now := change(name, data)) is not None:
                archive.writestr(name, now)
    return new


def keep(name: str, data: bytes) -> bytes:
    return data


def test_tensors_are_views_of_the_file(path: Path) -> None:
    with PthFile(path) as file:
        assert {name: (i.dtype, i.shape) for name, i in file.tensors.items()} == {
            "a": ("F32", (2, 3)),
            "b": ("BF16", (4,)),
        }
        info = file.tensors["a"]
        assert info.start % 64 == 0  # as torch.save lays storages out: they need no copy
        found = file.bytes(info.start, info.stop).view(np.float32)
        assert found.tolist() == [0, 1, 2, 3, 4, 5]


def test_a_part_of_a_storage_is_read_where_it_lies(tmp_path: Path) -> None:
    whole = torch.arange(12.0)
    torch.save({"x": whole[3:9].view(2, 3), "y": whole}, tmp_path / "m.pth")
    with PthFile(tmp_path / "m.pth") as file:
        x, y = file.tensors["x"], file.tensors["y"]
        assert (x.start - y.start, x.stop - x.start) == (12, 24)


def test_a_rewritten_file_is_read(path: Path) -> None:
    with PthFile(rewritten(path, keep)) as file:
        assert set(file.tensors) == {"a", "b"}


def test_a_file_from_before_archives_is_refused_with_what_to_do(tmp_path: Path) -> None:
    old = tmp_path / "old.pth"
    torch.save(TENSORS, old, _use_new_zipfile_serialization=False)
    with pytest.raises(CheckpointError, match="no zip archive") as error:
        PthFile(old)
    assert "torch.load" in error.value.hint and "weights_only=True" in error.value.hint


def test_a_compressed_member_is_refused_without_reading_it(path: Path) -> None:
    bomb = rewritten(path, keep, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(CheckpointError, match="compressed"):
        PthFile(bomb)


def test_turned_tensors_are_refused_by_name(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2, 3).t()}, tmp_path / "m.pth")
    with pytest.raises(CheckpointError, match=r"the tensor w in strides of \(1, 3\)"):
        PthFile(tmp_path / "m.pth")


DAMAGED = {
    "a storage that is missing": (
        lambda n, d: None if n.endswith("data/0") else d,
        "lacks the storage '0' of the tensor a",
    ),
    "a storage that is too small": (
        lambda n, d: d[:8] if n.endswith("data/0") else d,
        "too small a storage for the tensor a",
    ),
    "no pickle": (lambda n, d: None if n.endswith("data.pkl") else d, "has no data.pkl"),
    "numbers the other way round": (
        lambda n, d: b"big" if n.endswith("byteorder") else d,
        "big-endian",
    ),
    "code in the pickle": (
        lambda n, d: b"\x80\x02cos\nsystem\n." if n.endswith("data.pkl") else d,
        r"asks for 'os\.system'",
    ),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_and_hostile_archives_are_refused(case: str, path: Path) -> None:
    change, said = DAMAGED[case]
    with pytest.raises(CheckpointError, match=said):
        PthFile(rewritten(path, change))


def test_a_tensor_beyond_its_storage_is_refused(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(300)}, tmp_path / "m.pth")

    def longer(name: str, data: bytes) -> bytes:
        # The first of the two is the number of the storage, the second that of the tensor.
        number = b"M" + struct.pack("<H", 300)
        first, second, third = data.split(number)
        return first + number + second + b"M" + struct.pack("<H", 301) + third

    new = rewritten(tmp_path / "m.pth", lambda n, d: longer(n, d) if n.endswith("pkl") else d)
    with pytest.raises(CheckpointError, match="beyond the end of its storage"):
        PthFile(new)


@pytest.mark.parametrize("size", [0, 4, 30, 200])
def test_a_truncated_file_is_refused(size: int, path: Path) -> None:
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(CheckpointError):
        PthFile(path)


def test_a_member_that_claims_to_lie_elsewhere_is_refused(path: Path) -> None:
    data = bytearray(path.read_bytes())
    entry = data.rfind(b"PK\x01\x02")
    data[entry + 42 : entry + 46] = struct.pack("<I", len(data) - 4)
    path.write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match=r"beyond its end|no whole zip archive"):
        PthFile(path)


def test_members_may_not_repeat(path: Path) -> None:
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("model/data.pkl", b"")
    with pytest.raises(CheckpointError, match="twice"):
        PthFile(path)


def test_no_byte_of_an_archive_makes_anything_else_of_it(path: Path) -> None:
    data = path.read_bytes()
    with PthFile(path) as file:
        size = file.size
    for at in [*range(0, 200), *range(len(data) - 400, len(data))]:
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :])
        try:
            with PthFile(path) as file:
                assert all(0 <= i.start <= i.stop <= size for i in file.tensors.values())
        except CheckpointError:
            continue


def test_what_reads_it_opens_no_archive_member(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> io.BytesIO:
        raise AssertionError("a member was unpacked")

    monkeypatch.setattr(zipfile.ZipFile, "open", refuse)
    monkeypatch.setattr(zipfile.ZipFile, "read", refuse)
    with PthFile(path) as file:
        assert set(file.tensors) == {"a", "b"}
