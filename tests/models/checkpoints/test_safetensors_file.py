"""One safetensors file, against the library of the format and the bytes of the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from ingot.errors import CheckpointError
from ingot.models.checkpoints import safetensors_file
from ingot.models.checkpoints.safetensors_file import SafetensorsFile
from tests.support.checkpoints import with_header

DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "U16": torch.uint16,
    "I16": torch.int16, "F16": torch.float16, "BF16": torch.bfloat16, "U32": torch.uint32,
    "I32": torch.int32, "F32": torch.float32, "U64": torch.uint64, "I64": torch.int64,
    "F64": torch.float64, "F8_E5M2": torch.float8_e5m2, "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
}  # fmt: skip
SHAPES = st.lists(st.integers(0, 4), max_size=3)
TENSORS = st.dictionaries(
    st.text("ab.é", min_size=1, max_size=3), st.tuples(st.sampled_from(sorted(DTYPES)), SHAPES)
)


def data_of(tensor: torch.Tensor) -> bytes:
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


@settings(max_examples=60, deadline=None, derandomize=True)
@given(kinds=TENSORS, metadata=st.sampled_from([None, {"format": "pt"}]))
def test_it_reads_what_the_library_writes(
    tmp_path_factory: pytest.TempPathFactory,
    kinds: dict[str, tuple[str, list[int]]],
    metadata: dict[str, str] | None,
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    tensors = {}
    for seed, (name, (dtype, shape)) in enumerate(kinds.items()):
        size = int(np.prod(shape)) * DTYPES[dtype].itemsize
        data = np.random.default_rng(seed).integers(0, 2, size, np.uint8)
        tensors[name] = torch.empty(shape, dtype=DTYPES[dtype])
        if size:
            tensors[name].reshape(-1).view(torch.uint8).copy_(torch.from_numpy(data))
    save_file(tensors, path, metadata)
    with SafetensorsFile(path) as file:
        assert file.tensors.keys() == tensors.keys()
        for name, info in file.tensors.items():
            assert (info.name, info.dtype, list(info.shape)) == (name, *kinds[name])
            assert file.bytes(info.start, info.stop).tobytes() == data_of(tensors[name])


def entry(dtype: str, shape: list[Any], *offsets: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": list(offsets)}


def opened(path: Path, header: dict[str, Any], size: int, more: int = 0) -> list[str]:
    """The tensors of a file with this header, padded to be longer, and so many bytes of data."""
    text = json.dumps(header)
    with_header(path, text.ljust(len(text) + more), bytes(size))
    with SafetensorsFile(path) as file:
        return sorted(file.tensors)


@pytest.mark.parametrize(
    ("header", "size"),
    [
        ({}, 0),
        ({"__metadata__": {"format": "pt"}}, 0),
        ({"a": entry("F32", [], 0, 4)}, 4),
        ({"b": entry("U8", [3], 2, 5), "a": entry("BF16", [1], 0, 2)}, 5),
        # Tensors without elements lie before, between and after others, in any order.
        ({"a": entry("F32", [1], 0, 4), "b": entry("F32", [0], 0, 0)}, 4),
        ({"c": entry("F32", [1], 4, 8), "b": entry("U8", [0], 4, 4), "a": entry("F32", [1], 0, 4)},
         8),
        ({"b": entry("F32", [0, 3], 4, 4), "a": entry("F32", [1], 0, 4)}, 4),
    ],
)  # fmt: skip
def test_files_that_are_odd_and_whole(header: dict[str, Any], size: int, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    names = opened(path, header, size)
    with safe_open(path, "np") as library:
        assert names == sorted(library.keys())


@pytest.mark.parametrize(
    ("header", "size"),
    [
        ({"a": entry("U8", [True], 0, 1)}, 1),
        ({"a": entry("U8", [1], False, True)}, 1),
        ({"a": entry("U8", [1], 0.0, 1)}, 1),
        ({"a": entry("U8", [2, -1], 2, 0)}, 2),
        ({"a": entry("U8", [1], 0, 1), "b": entry("U8", [1], 2, 3)}, 3),
        ({"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 1, 3)}, 3),
        ({"a": entry("U8", [1], 0, 1)}, 0),
        ({"a": entry("U8", [1], 0, 1)}, 2),
        ({}, 1),
        ({"__metadata__": {}, "a": None}, 0),
    ],
)
def test_files_that_are_not_whole(header: dict[str, Any], size: int, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with pytest.raises(CheckpointError, match=r"model\.safetensors") as caught:
        opened(path, header, size)
    assert "fetch it again" in caught.value.hint


def test_headers_may_be_long_but_not_longer_than_the_format_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, header = tmp_path / "model.safetensors", {"a": entry("U8", [1], 0, 1)}
    assert opened(path, header, 1, more=2**20) == ["a"]
    assert safetensors_file.MAX_HEADER_BYTES == 100_000_000
    monkeypatch.setattr(safetensors_file, "MAX_HEADER_BYTES", 1000)
    room = 1000 - len(json.dumps(header))
    assert opened(path, header, 1, more=room) == ["a"]
    with pytest.raises(CheckpointError, match="says that its header is 1001 bytes long"):
        opened(path, header, 1, more=room + 1)


def test_views_outlive_the_file_that_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.arange(8, dtype=torch.uint8)}, path)
    file = SafetensorsFile(path)
    view = file.bytes(file.tensors["a"].start, file.tensors["a"].stop)
    file.close()
    assert view.tolist() == list(range(8))


def test_a_file_is_let_go_when_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(8)}, path)
    with SafetensorsFile(path):
        assert str(path) in Path("/proc/self/maps").read_text()
    assert str(path) not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("offset", [0, 1, 4095, 4096, 4097])
def test_what_was_forgotten_is_read_again(offset: int, tmp_path: Path) -> None:
    path, data = tmp_path / "model.safetensors", np.arange(3 * 4096, dtype=np.uint16)
    save_file({"a": torch.from_numpy(data)}, path)
    with SafetensorsFile(path) as file:
        info = file.tensors["a"]
        file.bytes(info.start, info.stop)[:] = 7
        file.forget(info.start + offset, info.start + offset)  # nothing
        assert set(file.bytes(info.start, info.stop)) == {7}
        file.forget(info.start + offset, info.stop)
        assert file.bytes(info.start + offset, info.stop).tobytes() == data.tobytes()[offset:]
