"""Files of checkpoints: every kind of damage is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from ingot.errors import CheckpointError, ModelDirError
from ingot.models import registry
from ingot.models.checkpoints.checkpoint import Checkpoint
from ingot.models.model_dir import ModelDir
from tests.support.checkpoints import (
    NORM,
    Q,
    build,
    refused,
    with_header,
)
from tests.support.odd_files import ODD_FILES

# Files


def test_missing_directory_and_files(tmp_path: Path, copy: Callable[[str], Path]) -> None:
    config = registry.load_config(ModelDir.open(copy("single")))
    module = registry.build(config, max_model_len=8)
    with pytest.raises(ModelDirError, match="absent"):
        Checkpoint.open(ModelDir.open(tmp_path / "absent"), config, module)
    empty = copy("tied")
    (empty / "model.safetensors").unlink()
    refused(empty, "neither model.safetensors nor model.safetensors.index.json")
    save_file({"x": torch.ones(1)}, empty / "weights.safetensors")
    refused(empty, "only weights.safetensors")


@pytest.mark.parametrize("make", ODD_FILES.values(), ids=ODD_FILES)
@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json"])
def test_what_is_no_file_is_refused_at_once(
    name: str, make: Callable[[Path], object], copy: Callable[[str], Path]
) -> None:
    folder = copy("single")
    (folder / "model.safetensors").unlink()
    make(folder / name)
    with pytest.raises(ModelDirError, match=r"model\.safetensors"):
        build(folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "pytorch_model.bin.index.json"])
def test_pickles_are_refused_with_the_fix(name: str, copy: Callable[[str], Path]) -> None:
    model_dir = copy("single")
    (model_dir / "model.safetensors").rename(model_dir / name)
    assert "save_pretrained" in refused(model_dir, name).hint


def test_both_a_single_file_and_an_index(copy: Callable[[str], Path]) -> None:
    model_dir = copy("sharded")
    save_file({"x": torch.ones(1)}, model_dir / "model.safetensors")
    refused(model_dir, "both")


def test_shard_that_is_listed_but_absent(copy: Callable[[str], Path]) -> None:
    model_dir = copy("sharded")
    shard = sorted(model_dir.glob("model-*.safetensors"))[1]
    shard.unlink()
    refused(model_dir, shard.name)


def test_shard_that_is_not_listed(copy: Callable[[str], Path]) -> None:
    model_dir = copy("sharded")
    save_file({"x": torch.ones(1)}, model_dir / "model-00099-of-00099.safetensors")
    refused(model_dir, "model-00099-of-00099.safetensors")


def edit_index(model_dir: Path, change: Callable[[dict[str, str]], object]) -> Path:
    path = model_dir / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index["weight_map"])
    path.write_text(json.dumps(index))
    return model_dir


def test_index_that_disagrees_with_its_shards(copy: Callable[[str], Path]) -> None:
    def swap(weight_map: dict[str, str]) -> None:
        weight_map[Q] = next(shard for shard in weight_map.values() if shard != weight_map[Q])

    refused(edit_index(copy("sharded"), swap), Q)


@pytest.mark.parametrize("other", [0, -1], ids=["first", "last"])
def test_a_tensor_in_two_shards(other: int, copy: Callable[[str], Path]) -> None:
    model_dir = copy("sharded")
    holds = {path: load_file(path) for path in sorted(model_dir.glob("model-*.safetensors"))}
    more = list(holds)[other]
    name, tensor = next(
        (name, tensor)
        for path, tensors in holds.items()
        for name, tensor in tensors.items()
        if path != more
    )
    save_file(holds[more] | {name: tensor}, more)
    refused(model_dir, "disagree about")


@pytest.mark.parametrize("lost", [Q, NORM])
def test_index_that_lacks_a_tensor(lost: str, copy: Callable[[str], Path]) -> None:
    refused(edit_index(copy("sharded"), lambda m: m.pop(lost)), lost)


def test_an_index_may_list_the_copy_of_a_tied_head(copy: Callable[[str], Path]) -> None:
    model_dir = copy("tied")
    shard = "model-00001-of-00001.safetensors"
    (model_dir / "model.safetensors").rename(model_dir / shard)
    names = [*load_file(model_dir / shard), "lm_head.weight"]
    index = {"weight_map": dict.fromkeys(names, shard)}
    (model_dir / "model.safetensors.index.json").write_text(json.dumps(index))
    build(model_dir)[0].close()
    config = json.loads((model_dir / "config.json").read_text())
    (model_dir / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    refused(model_dir, "lacks lm_head.weight")


@pytest.mark.parametrize("shard", ["../x.safetensors", "/etc/passwd", 3, "model.bin", ""])
def test_index_that_points_elsewhere(shard: object, copy: Callable[[str], Path]) -> None:
    refused(edit_index(copy("sharded"), lambda m: m.update({Q: shard})), Q)


@pytest.mark.parametrize("text", ["", "{}", '{"weight_map": []}', '{"weight_map": {}}'])
def test_index_that_is_not_one(text: str, copy: Callable[[str], Path]) -> None:
    model_dir = copy("sharded")
    (model_dir / "model.safetensors.index.json").write_text(text)
    refused(model_dir, "model.safetensors.index.json")


@pytest.mark.parametrize("cut", [1, 1000])
def test_truncated_file(cut: int, copy: Callable[[str], Path]) -> None:
    model_dir = copy("single")
    path = model_dir / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-cut])
    refused(model_dir, "truncated")


@pytest.mark.parametrize("size", [0, 7, 8, 100])
def test_file_that_ends_in_its_header(size: int, copy: Callable[[str], Path]) -> None:
    model_dir = copy("single")
    path = model_dir / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    refused(model_dir, "model.safetensors")


def test_file_with_bytes_after_its_end(copy: Callable[[str], Path]) -> None:
    model_dir = copy("single")
    with (model_dir / "model.safetensors").open("ab") as file:
        file.write(b"more")
    refused(model_dir, "4 bytes that belong to no tensor")


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "header",
    [
        "{",
        "[]",
        "null",
        b"\xff\xfe",
        '{"a": 1}',
        '{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "a": {}}',
        json.dumps({"a": {"dtype": "F32", "shape": [2]}}),
        json.dumps({"a": {**ENTRY, "more": 1}}),
        json.dumps({"a": {**ENTRY, "dtype": "F128"}}),
        json.dumps({"a": {**ENTRY, "dtype": ["F32"]}}),
        json.dumps({"a": {**ENTRY, "shape": [3]}}),
        json.dumps({"a": {**ENTRY, "shape": [-2]}}),
        json.dumps({"a": {**ENTRY, "shape": [2.0]}}),
        json.dumps({"a": {**ENTRY, "shape": 2}}),
        json.dumps({"a": {**ENTRY, "data_offsets": [8, 0]}}),
        json.dumps({"a": {**ENTRY, "data_offsets": [0, 8, 8]}}),
        json.dumps({"a": {**ENTRY, "data_offsets": [4, 12]}}),
        json.dumps({"a": {**ENTRY, "shape": [2**62], "data_offsets": [0, 2**64]}}),
        json.dumps({"a": ENTRY, "b": ENTRY}),
    ],
)
def test_corrupt_header(header: str | bytes, copy: Callable[[str], Path]) -> None:
    model_dir = copy("single")
    with_header(model_dir / "model.safetensors", header)
    refused(model_dir, "model.safetensors")


def test_header_that_claims_to_be_huge(copy: Callable[[str], Path]) -> None:
    model_dir = copy("single")
    (model_dir / "model.safetensors").write_bytes(b"\xff" * 64)
    refused(model_dir, "header is 18446744073709551615 bytes")


def test_any_flipped_byte_of_the_header_gives_a_typed_error(copy: Callable[[str], Path]) -> None:
    model_dir = copy("single")
    path = model_dir / "model.safetensors"
    data = path.read_bytes()
    rng = np.random.default_rng(0)
    config = registry.load_config(ModelDir.open(model_dir))
    module = registry.build(config, max_model_len=8)
    refusals = 0
    for place in rng.integers(0, 8 + int.from_bytes(data[:8], "little"), size=100):
        path.write_bytes(
            data[:place] + bytes([data[place] ^ 1 << rng.integers(8)]) + data[place + 1 :]
        )
        try:
            Checkpoint.open(ModelDir.open(model_dir), config, module).close()
        except CheckpointError:
            refusals += 1
    assert refusals > 90
