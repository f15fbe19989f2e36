"""Edges of checkpoints: files that are let go, odd offsets, rows of constants, all names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ingot.errors import CheckpointError
from ingot.models import registry
from ingot.models.blocks.constants import named_constants
from ingot.models.checkpoints.checkpoint import Checkpoint
from ingot.models.checkpoints.checkpoint_files import weight_names
from ingot.models.model_dir import ModelDir
from tests.support.checkpoints import (
    EMBED,
    HEAD,
    NORM,
    Q,
    Tensors,
    build,
    edit,
    refused,
    with_header,
)
from tests.support.tiny_models import save_random

FREQUENCIES = "model.rotary_emb.inv_freq"
INDEX = "model.safetensors.index.json"


def mapped(folder: Path) -> bool:
    """Whether this process still has a file of that folder in memory."""
    return f"{folder}/" in Path("/proc/self/maps").read_text()


# Files


@pytest.mark.parametrize("kind", ["single", "sharded"])
def test_closing_lets_every_file_go(kind: str, copy: Callable[[str], Path]) -> None:
    folder = copy(kind)
    with build(folder)[0] as checkpoint:
        assert mapped(folder)
        for name in checkpoint.names:
            checkpoint.read(name)
    assert not mapped(folder)


def test_a_checkpoint_that_is_refused_lets_every_file_go(copy: Callable[[str], Path]) -> None:
    folder = edit(copy("single"), lambda t: t.pop(Q))
    error = refused(folder, Q)
    assert not mapped(folder) and error.__traceback__
    folder = copy("sharded")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 95}))
    error = refused(folder, "instead of [95, 64]")
    assert not mapped(folder) and error.__traceback__


def test_shards_that_are_refused_are_let_go(copy: Callable[[str], Path]) -> None:
    folder = copy("sharded")
    index = json.loads((folder / INDEX).read_text())
    del index["weight_map"][NORM]
    (folder / INDEX).write_text(json.dumps(index))
    error = refused(folder, f"{INDEX} and its shards disagree about {NORM}")
    assert not mapped(folder) and error.__traceback__


def test_files_that_hold_the_tensors_by_name(saved: Path, tmp_path: Path) -> None:
    for kind in ("single", "sharded"):
        names = sorted(path.name for path in (saved / kind).glob("*.safetensors"))
        assert weight_names(ModelDir.open(saved / kind)) == names
    assert weight_names(ModelDir.open(tmp_path)) == []
    (tmp_path / INDEX).write_text("{}")
    with pytest.raises(CheckpointError, match="has no weight_map"):
        weight_names(ModelDir.open(tmp_path))
    (tmp_path / "model.safetensors").touch()
    assert weight_names(ModelDir.open(tmp_path)) == ["model.safetensors"]


@pytest.mark.parametrize("name", ["model-1.safetensors", "model-x-of-y.safetensors"])
def test_any_shard_that_is_not_listed_is_named(name: str, copy: Callable[[str], Path]) -> None:
    folder = copy("sharded")
    save_file({"x": torch.ones(1)}, folder / name)
    refused(folder, name)
    (folder / name).rename(folder / "adapter.safetensors")  # not called like a shard
    build(folder)[0].close()


# Tensors


@pytest.mark.parametrize("kind", ["single", "bfloat16"])
@pytest.mark.parametrize("more", range(4))
def test_data_may_begin_at_any_byte(more: int, kind: str, copy: Callable[[str], Path]) -> None:
    folder = copy(kind)
    path = folder / "model.safetensors"
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    stored = {name: tensor.clone() for name, tensor in load_file(path).items()}
    with_header(path, data[8:end] + b" " * more, data[end:])
    with build(folder)[0] as checkpoint:
        for name, tensor in stored.items():
            got = checkpoint.read(name)
            assert torch.equal(got, tensor) and got.data_ptr() % got.itemsize == 0


def test_rows_of_constants_are_copies(saved: Path) -> None:
    checkpoint, module = build(saved / "single")
    values = named_constants(module)[FREQUENCIES].clone()
    with checkpoint:
        assert torch.equal(checkpoint.read(FREQUENCIES, 2, 5), values[2:5])
        assert torch.equal(checkpoint.read(FREQUENCIES, 6), values[6:])
        assert torch.equal(torch.cat(list(checkpoint.pieces(FREQUENCIES, 12))), values)
        checkpoint.read(FREQUENCIES).zero_()
        assert torch.equal(checkpoint.read(FREQUENCIES), values)


@pytest.mark.parametrize("kind", ["single", "tied"])
def test_rows_from_one_to_the_end(kind: str, saved: Path) -> None:
    stored = load_file(saved / kind / "model.safetensors")
    with build(saved / kind)[0] as checkpoint:
        for start, stop in ((0, 1), (319, 320), (5, 5), (7, 300)):
            got = checkpoint.read(EMBED, start, stop)
            assert torch.equal(got, stored[EMBED][start:stop])
        assert torch.equal(checkpoint.read(EMBED, 317), stored[EMBED][317:])
        (whole,) = checkpoint.pieces(EMBED)
        assert torch.equal(whole, stored[EMBED])


@pytest.mark.parametrize("name", [FREQUENCIES, "model.layers.0.self_attn.rotary_emb.inv_freq"])
def test_stored_frequencies_are_not_read(name: str, copy: Callable[[str], Path]) -> None:
    folder = edit(copy("single"), lambda t: t.update({name: torch.full((8,), torch.nan)}))
    checkpoint, module = build(folder)
    with checkpoint:
        assert torch.equal(checkpoint.read(FREQUENCIES), named_constants(module)[FREQUENCIES])


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.float32])
def test_masks_may_have_any_dtype(dtype: torch.dtype, tmp_path: Path) -> None:
    folder = save_random("gpt2", tmp_path)
    masks = {f"transformer.h.{i}.attn.bias": torch.ones(1, 1, 8, 8).to(dtype) for i in range(2)}
    build(edit(folder, lambda t: t.update(masks)))[0].close()


def test_a_copy_of_another_dtype_is_refused_at_once(copy: Callable[[str], Path]) -> None:
    folder = edit(copy("tied"), lambda t: t.update({HEAD: t[EMBED].bfloat16()}))
    refused(folder, f"{HEAD} has another shape or dtype than {EMBED}")


def test_all_that_lacks_and_all_that_is_left_over_is_told_at_once(tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        tensors["transformer.h.7.ln_1.weight"] = torch.ones(64)
        tensors["odd"] = torch.ones(1)
        del tensors["transformer.wpe.weight"], tensors["transformer.h.1.mlp.c_fc.bias"]

    error = refused(edit(save_random("gpt2", tmp_path), change), "the checkpoint lacks ")
    assert "lacks h.1.mlp.c_fc.bias, wpe.weight; has tensors that" in error.found
    assert "does not use: odd, transformer.h.7.ln_1.weight" in error.found
    assert "gpt2 model" in error.hint


def test_a_directory_is_looked_at_first(tmp_path: Path, saved: Path) -> None:
    config = registry.load_config(ModelDir.open(saved / "single"))
    module = registry.build(config, max_model_len=8)
    with pytest.raises(Exception, match="absent does not exist"):
        Checkpoint.open(ModelDir.open(tmp_path / "absent"), config, module)
