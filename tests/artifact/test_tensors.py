from __future__ import annotations

import json
import os

import pytest

from ingot.artifact.tensors import TensorEntry, read_header
from ingot.errors import ArtifactError


def header_of(tmp_path, tensors, *, data=128, pad=64, raw=None):
    text = json.dumps(tensors).encode() if raw is None else raw
    text += b" " * (-(8 + len(text)) % pad)
    path = tmp_path / "w.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(data))
    fd = os.open(path, os.O_RDONLY)
    try:
        return read_header(fd, "w.safetensors")
    finally:
        os.close(fd)


def tensor(begin=0, end=64, dtype="F32", shape=(16,)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


GOOD = {"a": tensor(), "b": tensor(64, 128, "BF16", (4, 8)), "__metadata__": {"format": "pt"}}


def test_a_good_header_is_read(tmp_path):
    header = header_of(tmp_path, GOOD)
    start = (tmp_path / "w.safetensors").stat().st_size - 128
    assert header.tensors == {
        "a": TensorEntry("float32", start, 64),
        "b": TensorEntry("bfloat16", start + 64, 64),
    }


@pytest.mark.parametrize(
    "change",
    [
        {"b": tensor(0, 64)},  # overlap
        {"b": tensor(128, 192)},  # hole, beyond the end
        {"b": tensor(64, 128, "F32", (15,))},  # shape
        {"b": tensor(64, 128, "F32", (-16,))},
        {"b": tensor(64, 128, "F64", (8,))},  # dtype
        {"b": tensor(64, 2**63)},
        {"b": tensor(64, 128) | {"extra": 1}},
        {"b": {"dtype": "F32"}},
        {"b": 7},
    ],
)
def test_a_tensor_in_the_wrong_place_is_refused(tmp_path, change):
    with pytest.raises(ArtifactError, match=r"w\.safetensors"):
        header_of(tmp_path, GOOD | change)


@pytest.mark.parametrize(
    "how",
    [
        {"data": 192},  # bytes that belong to no tensor
        {"data": 64},
        {"pad": 8, "raw": json.dumps(GOOD).encode() + b"   "},
        {"raw": b"{"},
        {"raw": b"\xff\xfe"},
        {"raw": b"[" * 5000},
    ],
)
def test_a_header_that_does_not_fit_the_file_is_refused(tmp_path, how):
    with pytest.raises(ArtifactError, match=r"w\.safetensors"):
        header_of(tmp_path, GOOD, **how)


def test_a_repeated_name_is_refused(tmp_path):
    one = json.dumps(tensor()).encode()
    two = json.dumps(tensor(64, 128)).encode()
    with pytest.raises(ArtifactError, match="begins at byte"):
        header_of(tmp_path, {}, raw=b'{"a": ' + one + b', "a": ' + two + b"}")


@pytest.mark.parametrize("length", [0, 7, 2**62, 2**64 - 1, 100_000_001])
def test_a_length_that_lies_is_refused(tmp_path, length):
    path = tmp_path / "w.safetensors"
    path.write_bytes(length.to_bytes(8, "little")[: 8 if length else 4] + b"{}")
    fd = os.open(path, os.O_RDONLY)
    try:
        with pytest.raises(ArtifactError):
            read_header(fd, "w.safetensors")
    finally:
        os.close(fd)
