from __future__ import annotations

import hashlib
import json
import os

import pytest
from safetensors import deserialize

from ingot.artifact import tensors
from ingot.artifact.tensors import TensorEntry, header, read_header
from ingot.errors import ArtifactError


def header_of(tmp_path, entries, *, data=128, pad=64, raw=None):
    text = json.dumps(entries).encode() if raw is None else raw
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
    found = header_of(tmp_path, GOOD)
    start = (tmp_path / "w.safetensors").stat().st_size - 128
    assert found.tensors == {
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


def read(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        return read_header(fd, path.name)
    finally:
        os.close(fd)


def test_what_the_writer_says_is_what_safetensors_and_the_reader_read(tmp_path):
    sizes = {"z": ("float32", 4), "a": ("bfloat16", 64), "m": ("int32", 132), "i": ("int8", 1)}
    sizes["h"] = ("float16", 66)
    text = header(sizes)
    padded = {name: -(-nbytes // 64) * 64 for name, (_, nbytes) in sizes.items()}
    data = text + bytes(sum(padded.values()))
    path = tmp_path / "w.safetensors"
    path.write_bytes(data)
    found = read(path)
    begins = [len(text) + sum([*padded.values()][:n]) for n in range(len(sizes))]
    assert len(text) % 64 == 0
    assert found.header_sha256 == hashlib.sha256(text).hexdigest()
    assert [(n, t.dtype, t.offset, t.nbytes) for n, t in found.tensors.items()] == [
        (name, dtype, begin, padded[name])
        for (name, (dtype, _)), begin in zip(sizes.items(), begins, strict=True)
    ]
    judged = {name: (info["dtype"], len(info["data"])) for name, info in deserialize(data)}
    spelled = {"float32": "F32", "bfloat16": "BF16", "int32": "I32", "int8": "I8"}
    spelled["float16"] = "F16"
    assert judged == {name: (spelled[sizes[name][0]], padded[name]) for name in sizes}


@pytest.mark.parametrize("length", range(40, 60))
def test_headers_end_on_a_line_whatever_their_length(length):
    text = header({"x" * length: ("int8", 64)})
    size = int.from_bytes(text[:8], "little")
    assert len(text) == 8 + size and len(text) % 64 == 0
    assert len(text) - len(text.rstrip()) < 64


def test_a_file_without_tensors_is_one(tmp_path):
    path = tmp_path / "w.safetensors"
    path.write_bytes(header({}))
    assert read(path).tensors == {}


def test_headers_are_as_long_as_safetensors_allows(tmp_path, monkeypatch):
    assert tensors.MAX_HEADER_BYTES == 100_000_000
    text = header({"x" * 10**6: ("int8", 64)})
    path = tmp_path / "w.safetensors"
    path.write_bytes(text + bytes(64))
    assert len(read(path).tensors) == 1
    monkeypatch.setattr(tensors, "MAX_HEADER_BYTES", len(text) - 8)
    assert len(read(path).tensors) == 1
    monkeypatch.setattr(tensors, "MAX_HEADER_BYTES", len(text) - 9)
    with pytest.raises(ArtifactError, match="a header of"):
        read(path)


def test_tensors_come_in_the_order_of_the_file_and_start_on_lines(tmp_path):
    swapped = {"b": tensor(), "a": tensor(64, 128)}
    assert list(header_of(tmp_path, swapped).tensors) == ["b", "a"]
    narrow = {"a": tensor(0, 32, shape=(8,)), "b": tensor(32, 128, shape=(24,))}
    with pytest.raises(ArtifactError, match="tensor 'b' begins at byte"):
        header_of(tmp_path, narrow)
    for end in (64, 192):
        with pytest.raises(ArtifactError, match="bytes, but its tensors end at"):
            header_of(tmp_path, {"a": tensor(0, end, shape=(end // 4,))}, data=128)
    with pytest.raises(ArtifactError, match="begins at byte"):
        header_of(tmp_path, {"a": tensor(shape=(-4, -4))}, data=64)


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
