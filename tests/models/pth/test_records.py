"""Pickles: those of tensors are read, and nothing of any other is run."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path

import pytest
import torch

from ingot.models.pth.records import OPERATIONS, Refused, Storage, TensorRecord, read_records


def pickled(value: object, folder: Path) -> bytes:
    """data.pkl as torch.save writes it."""
    path = folder / "x.pth"
    torch.save(value, path)
    with zipfile.ZipFile(path) as archive:
        return archive.read("x/data.pkl")


def test_tensors_are_records_of_where_they_lie(tmp_path: Path) -> None:
    base = torch.arange(24.0)
    tensors = {
        "a": base.view(4, 6),
        "b": base[6:12],
        "c": torch.ones(1, 1, 3, dtype=torch.bfloat16),
        "d": torch.nn.Parameter(torch.ones(2, dtype=torch.float16)),
    }
    found = read_records(pickled(tensors, tmp_path))
    whole = Storage("F32", "0", 24)
    assert found["a"] == TensorRecord(whole, 0, (4, 6), (6, 1))
    assert found["b"] == TensorRecord(whole, 6, (6,), (1,))
    assert found["c"] == TensorRecord(Storage("BF16", "1", 3), 0, (1, 1, 3), (3, 3, 1))
    assert found["d"].storage == Storage("F16", "2", 2)


def test_a_state_dict_of_a_module_is_read(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.LayerNorm(2))
    found = read_records(pickled(module.state_dict(), tmp_path))
    assert list(found) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert type(module.state_dict()) is OrderedDict  # with attributes, which are left out


def test_more_tensors_than_one_byte_counts(tmp_path: Path) -> None:
    tensors = {f"name.{i}": torch.ones(1) for i in range(700)}
    assert len(read_records(pickled(tensors, tmp_path))) == 700


class Runs:
    """Would write a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


class Restores(dict):
    """A class of its own, whose code an unpickler would import."""


@pytest.mark.parametrize("protocol", range(6))
def test_what_would_run_code_is_refused_and_does_not_run(protocol: int, tmp_path: Path) -> None:
    data = pickle.dumps({"a": Runs(tmp_path / "made")}, protocol)
    with pytest.raises(Refused):
        read_records(data)
    assert not (tmp_path / "made").exists()
    pickle.loads(data)  # it is what it is meant to be
    assert (tmp_path / "made").exists()


HOSTILE = {
    "a name that runs": (b"\x80\x02cos\nsystem\n.", "asks for 'os.system'"),
    "a name with dots": (b"\x80\x02ctorch._utils\n_rebuild_tensor_v2.x\n.", "asks for"),
    "a call of a storage": (b"\x80\x02ctorch\nFloatStorage\n)R.", "calls what is no tensor"),
    "a call of text": (b"\x80\x02X\x01\x00\x00\x00a)R.", "calls what is no tensor"),
    "a persistent identity as text": (b"\x80\x02Pabc\n.", "operation PERSID"),
    "an instance": (b"\x80\x02(ios\nsystem\n.", "operation INST"),
    "an object": (b"\x80\x02(cos\nsystem\no.", "asks for"),
    "an extension": (b"\x80\x02\x82\x01.", "operation EXT1"),
    "a list": (b"\x80\x02].", "operation EMPTY_LIST"),
    "a storage of objects": (
        b"\x80\x02(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000"
        b"X\x03\x00\x00\x00cpuJ\xff\xff\xff\xfftQ.",
        "a storage of an unknown kind",
    ),
    "a memory of nothing": (b"\x80\x02h\x07.", "no valid pickle"),
    "an empty stack": (b"\x80\x02s.", "no valid pickle"),
    "no mark": (b"\x80\x02Nu.", "no valid pickle"),
    "no end": (b"\x80\x02}", "no valid pickle"),
    "nothing": (b"", "no valid pickle"),
    "a text": (b"\x80\x02X\x01\x00\x00\x00a.", "no dictionary of tensors"),
    "a number in a dictionary": (b"\x80\x02}X\x01\x00\x00\x00aK\x01s.", "'a', which is no tensor"),
    "a dictionary in itself": (b"\x80\x02}q\x00X\x01\x00\x00\x00ah\x00s.", "which is no tensor"),
    "pairs for a tuple": (b"\x80\x02)X\x01\x00\x00\x00aK\x01s.", "fills what is no dictionary"),
    "a key that has no hash": (b"\x80\x02}}K\x01s.", "no valid pickle"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_anything_else_is_refused_by_what_it_is(case: str) -> None:
    data, said = HOSTILE[case]
    with pytest.raises(Refused, match=said):
        read_records(data)


def test_an_object_of_python_is_refused() -> None:
    with pytest.raises(Refused):
        read_records(pickle.dumps(Restores(a=1), 2))


def test_damage_never_raises_anything_else(tmp_path: Path) -> None:
    data = pickled({"a": torch.ones(2, 3), "b": torch.ones(4)}, tmp_path)
    for at in range(len(data)):
        for byte in (0, 0x28, 0x52, 0x75, 0xFF, data[at] ^ 1):
            changed = data[:at] + bytes([byte]) + data[at + 1 :]
            try:
                found = read_records(changed)
            except Refused:
                continue
            assert all(type(record) is TensorRecord for record in found.values())


def test_the_operations_are_those_of_torch_save(tmp_path: Path) -> None:
    import pickletools

    tensors = {f"n{i}": torch.ones(2, 3, 4, dtype=torch.float16) for i in range(300)}
    tensors["big"] = torch.ones(70_000)
    data = pickled({**tensors, "p": torch.nn.Parameter(torch.ones(1))}, tmp_path)
    used = {opcode.name for opcode, _, _ in pickletools.genops(io.BytesIO(data))}
    assert used <= OPERATIONS.keys()
