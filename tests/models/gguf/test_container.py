"""The container: what is read of it, and that damaged and hostile files are refused by name."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from ingot.errors import CheckpointError, IngotError
from ingot.models.gguf.container import GgufFile
from ingot.models.gguf.model import SmallFiles

TEXT, ARRAY, U32, F32 = 8, 9, 4, 6


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def pair(key: bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: bytes, dims: list[int], kind: int = 0, offset: int = 0) -> bytes:
    sizes = struct.pack(f"<{len(dims)}Q", *dims)
    return text(name) + struct.pack("<I", len(dims)) + sizes + struct.pack("<IQ", kind, offset)


def file_of(
    pairs: list[bytes], tensors: list[bytes], data: bytes = b"", *, version: int = 3
) -> bytes:
    header = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(pairs))
    header += b"".join(pairs) + b"".join(tensors)
    return header + bytes(-len(header) % 32) + data


ARCHITECTURE = pair(b"general.architecture", TEXT, text(b"llama"))
WHOLE = file_of([ARCHITECTURE], [tensor(b"a", [8]), tensor(b"b", [8], offset=32)], bytes(64))


def read(data: bytes, folder: Path) -> GgufFile:
    path = folder / "model.gguf"
    path.write_bytes(data)
    return GgufFile(path)


def test_what_the_writer_of_llama_cpp_writes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_uint32("a.number", 7)
    writer.add_float32("a.float", 1e-6)
    writer.add_bool("a.flag", True)
    writer.add_string("a.text", "ä ▁")
    writer.add_array("some.texts", ["x", "yz", ""])
    writer.add_array("some.numbers", [1, -2, 3])
    matrix = np.arange(64 * 3, dtype=np.float32).reshape(3, 64)
    writer.add_tensor("m", matrix)
    writer.add_tensor("q", gguf.quantize(matrix, gguf.GGMLQuantizationType.Q8_0), raw_dtype=8)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GgufFile(path) as file:
        assert file.metadata["a.number"] == 7 and file.metadata["a.flag"] is True
        assert file.metadata["a.float"] == 1e-6, "the shortest decimal, and not that of a double"
        assert file.metadata["a.text"] == "ä ▁"
        assert file.metadata["some.texts"] == ["x", "yz", ""]
        assert file.metadata["some.numbers"].tolist() == [1, -2, 3]
        m, q = file.tensors["m"], file.tensors["q"]
        assert (m.dtype, m.shape, q.dtype, q.shape) == ("F32", (3, 64), "Q8_0", (3, 64))
        assert np.array_equal(file.bytes(m.start, m.stop).view(np.float32), matrix.ravel())
        assert q.stop - q.start == 6 * 34


@pytest.mark.parametrize("version", [2, 3])
def test_both_versions(version: int, tmp_path: Path) -> None:
    data = file_of([ARCHITECTURE], [tensor(b"a", [8])], bytes(32), version=version)
    with read(data, tmp_path) as file:
        assert list(file.tensors) == ["a"]


def test_an_alignment_of_its_own(tmp_path: Path) -> None:
    pairs = [ARCHITECTURE, pair(b"general.alignment", U32, struct.pack("<I", 8))]
    tensors = [tensor(b"a", [3]), tensor(b"b", [3], offset=16)]
    header = file_of(pairs, tensors)
    with read(header + bytes(32), tmp_path) as file:
        assert file.tensors["b"].start - file.tensors["a"].start == 16


def test_values_need_not_be_utf8(tmp_path: Path) -> None:
    pairs = [ARCHITECTURE, pair(b"general.description", TEXT, text(b"caf\xe9 \xe2\x96"))]
    with read(file_of(pairs, []), tmp_path) as file:
        assert file.metadata["general.description"] == "caf\ufffd \ufffd"


DAMAGED: dict[str, tuple[bytes, str]] = {
    "other letters": (b"GGML" + WHOLE[4:], "is no GGUF file"),
    "empty": (b"", "is 0 bytes long"),
    "newer": (file_of([], [], version=4), "version 4, which is newer"),
    "older": (file_of([], [], version=1), "version 1, which is older"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian GGUF file of version 3"),
    "cut in the data": (WHOLE[:-1], "is truncated: 223 bytes, and b ends at 224"),
    "cut in the table": (WHOLE[:100], "is truncated: its header goes on"),
    "endless pairs": (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), "is truncated"),
    "endless tensors": (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "is truncated"),
    "an endless text": (file_of([struct.pack("<Q", 2**63)], []), "is truncated"),
    "endless texts": (
        file_of([pair(b"t", ARRAY, struct.pack("<IQ", TEXT, 2**61))], []),
        f"t has {2**61} texts",
    ),
    "endless numbers": (file_of([pair(b"n", ARRAY, struct.pack("<IQ", F32, 2**61))], []), "trunc"),
    "an array in an array": (
        file_of([pair(b"n", ARRAY, struct.pack("<IQ", ARRAY, 1))], []),
        "has an array in an array in n",
    ),
    "a kind of value": (file_of([pair(b"n", 13, bytes(8))], []), "has values of kind 13 in n"),
    "a key twice": (file_of([ARCHITECTURE] * 2, []), "has the key general.architecture twice"),
    "no UTF-8": (file_of([pair(b"\xff", U32, bytes(4))], []), "text that is not UTF-8"),
    "an alignment of 0": (file_of([pair(b"general.alignment", U32, bytes(4))], []), "no power of"),
    "an alignment of 24": (
        file_of([pair(b"general.alignment", U32, struct.pack("<I", 24))], []),
        "general.alignment = 24, which is no power of two",
    ),
    "an alignment in text": (
        file_of([pair(b"general.alignment", TEXT, text(b"32"))], []),
        "general.alignment = '32'",
    ),
    "a tensor twice": (
        file_of([], [tensor(b"a", [8]), tensor(b"a", [8], offset=32)], bytes(64)),
        "has the tensor a twice",
    ),
    "five dimensions": (file_of([], [tensor(b"a", [1] * 5)], bytes(4)), "has 5 dimensions"),
    "endless dimensions": (
        file_of([], [text(b"a") + struct.pack("<I", 2**32 - 1)], bytes(64)),
        "has 4294967295 dimensions",
    ),
    "no dimension": (file_of([], [tensor(b"a", [])], bytes(4)), "has the tensor a []"),
    "a huge tensor": (file_of([], [tensor(b"a", [2**62, 2**62])], bytes(4)), "is truncated"),
    "a tensor elsewhere": (
        file_of([], [tensor(b"a", [8], offset=2**63)], bytes(32)),
        "has a hole or an overlap before the tensor a",
    ),
    "tensors over each other": (
        file_of([], [tensor(b"a", [16]), tensor(b"b", [16])], bytes(128)),
        "has a hole or an overlap before the tensor b",
    ),
    "rows that blocks do not divide": (
        file_of([], [tensor(b"a", [33], kind=2)], bytes(64)),
        "the tensor a [33], whose rows Q4_0 does not divide",
    ),
    "rows that large blocks do not divide": (
        file_of([], [tensor(b"a", [640], kind=12)], bytes(384)),
        "the tensor a [640], whose rows Q4_K does not divide",
    ),
    "a type by name": (file_of([], [tensor(b"a", [256], kind=16)], bytes(99)), "of type IQ2_XXS"),
    "a type of tomorrow": (file_of([], [tensor(b"a", [8], kind=99)], bytes(32)), "of type 99"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_what_is_damaged_is_refused(name: str, tmp_path: Path) -> None:
    data, said = DAMAGED[name]
    with pytest.raises(CheckpointError) as caught:
        read(data, tmp_path)
    assert said in caught.value.found and str(tmp_path) in caught.value.found
    assert caught.value.hint


def test_the_file_that_damage_is_done_to_is_whole(tmp_path: Path) -> None:
    with read(WHOLE, tmp_path) as file:
        assert list(file.tensors) == ["a", "b"]


def flip(data: bytearray, rng: np.random.Generator) -> None:
    data[rng.integers(len(data))] = rng.integers(256)


def cut(data: bytearray, rng: np.random.Generator) -> None:
    del data[rng.integers(len(data)) :]


@pytest.mark.parametrize("damage", [flip, cut])
def test_any_damage_ends_in_a_typed_error_or_a_file(
    damage: Callable[[bytearray, np.random.Generator], None], tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(40):
        data = bytearray(WHOLE)
        damage(data, rng)
        try:
            read(bytes(data), tmp_path).close()
            SmallFiles(tmp_path / "model.gguf")("config.json")
        except IngotError:
            refused += 1
    assert refused > 20
