"""GGUF files of models with the gated delta rule: value heads in another order, decays as such."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from ingot.models import registry
from ingot.models.checkpoints.checkpoint import Checkpoint
from ingot.models.gguf.orders import Tiled
from ingot.models.model_dir import ModelDir
from tests.models.gguf.test_against_transformers import error, original, ours, theirs
from tests.models.gguf.test_expert_architectures import check_alike, parameters, save
from tests.support import gguf_delta, gguf_files
from tests.support.core import core
from tests.support.gguf_files import Type, write_gguf
from tests.support.tiny_models import save_random

# Three value heads of 24 for each key head; one; an interval of three.
NAMES = ("qwen35", "qwen35moe", "qwen35_odd", "qwen35_interval", "qwen35_bias")


def with_float_rates(model_dir: Path) -> Path:
    """Rates in float32, which published files have, and which no file rounds."""
    weights = model_dir / "model.safetensors"
    tensors = {
        name: tensor.float() if name.endswith(("A_log", "dt_bias")) else tensor
        for name, tensor in load_file(weights).items()
    }
    save_file(tensors, weights, metadata={"format": "pt"})
    return model_dir


@pytest.mark.parametrize("name", core("qwen35", "qwen35moe", further=NAMES))
def test_a_file_is_the_model_of_its_directory(name: str, tmp_path: Path) -> None:
    model_dir = with_float_rates(save(name, tmp_path / "model"))
    check_alike(write_gguf(model_dir, tmp_path / "m.gguf", Type.BF16), model_dir)


@pytest.mark.parametrize("name", core("qwen35", further=NAMES))
def test_logits_are_those_of_the_original(name: str, tmp_path: Path) -> None:
    model_dir = save_random(name, tmp_path / "model")
    path = write_gguf(model_dir, tmp_path / "m.gguf")
    assert error(ours(path, 40), theirs(original(model_dir), 40)) <= 1e-5


def test_heads_in_the_order_of_the_checkpoint_are_another_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: the order is seen in the logits where value heads share key heads."""
    monkeypatch.setattr(gguf_delta, "_tiled", lambda config, rows, size: rows)
    model_dir = save_random("qwen35", tmp_path / "model")
    path = write_gguf(model_dir, tmp_path / "m.gguf")
    assert error(ours(path, 40), theirs(original(model_dir), 40)) > 1e-2


def test_an_order_is_undone() -> None:
    config = {"linear_num_key_heads": 3, "linear_num_value_heads": 12, "linear_value_head_dim": 5}
    rows = torch.arange(7 + 60)
    stored = torch.cat((rows[:7], gguf_delta._tiled(config, rows[7:], 5)))
    wanted = np.arange(2, 61)
    order = Tiled(groups=3, shares=4, size=5, first=7)
    assert stored[order.stored(wanted, 67)].tolist() == wanted.tolist()


@pytest.mark.parametrize("kind", core(Type.Q8_0, further=[Type.Q4_0]))
def test_blocks_of_columns_in_another_order_are_kept(kind: Type, tmp_path: Path) -> None:
    """Values of 32 in a head: a block of columns is that of one head, and moves as a whole."""
    config = {"linear_value_head_dim": 32, "linear_key_head_dim": 32}
    model_dir = save("qwen35", tmp_path / "model", **config)
    path = write_gguf(
        model_dir, tmp_path / "m.gguf", lambda name: Type.F32 if "conv1d" in name else kind
    )
    expected = parameters(model_dir)[0]
    name = "model.layers.0.self_attn.out_proj.weight"
    loaded = registry.load_config(ModelDir.open(path))
    module = registry.build(loaded, max_model_len=64)
    with Checkpoint.open(ModelDir.open(path), loaded, module) as checkpoint:
        order = checkpoint.order(name)
        integers = checkpoint.integers(name)
        numbers = checkpoint.read(name).clone()
    assert order is not None and integers is not None
    assert sorted(order.tolist()) == list(range(len(order))) != order.tolist()
    assert torch.equal(integers.dequantize(), numbers[:, torch.from_numpy(order)])
    near = (numbers - expected[name].float()).norm() / expected[name].float().norm()
    assert near < (0.01 if kind == Type.Q8_0 else 0.15)


def test_heads_that_share_nothing_stand_as_in_the_checkpoint(tmp_path: Path) -> None:
    config = {"linear_num_value_heads": 2, "linear_value_head_dim": 32}
    model_dir = save("qwen35", tmp_path / "model", **config)
    path = write_gguf(
        model_dir, tmp_path / "m.gguf", lambda name: Type.F32 if "conv1d" in name else Type.Q8_0
    )
    loaded = registry.load_config(ModelDir.open(path))
    module = registry.build(loaded, max_model_len=64)
    with Checkpoint.open(ModelDir.open(path), loaded, module) as checkpoint:
        assert checkpoint.order("model.layers.0.self_attn.out_proj.weight") is None


def test_layers_after_the_last_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_dir = with_float_rates(save("qwen35", tmp_path / "model"))
    path = model_dir / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "mtp_num_hidden_layers": 1}))
    converted = gguf_files.converted

    def more(*arguments: object) -> list[tuple[str, torch.Tensor]]:
        tensors = list(converted(*arguments))
        beyond = [(n.replace("blk.1.", "blk.2."), t) for n, t in tensors if n.startswith("blk.1.")]
        return [*tensors, *beyond, ("blk.2.nextn.eh_proj.weight", torch.ones(64, 128))]

    monkeypatch.setattr(gguf_files, "converted", more)

    def keys(writer: gguf.GGUFWriter) -> None:
        writer.kv_data[0].pop("qwen35.block_count")
        writer.add_block_count(3)
        writer.add_nextn_predict_layers(1)

    file = write_gguf(model_dir, tmp_path / "m.gguf", Type.BF16, keys=keys)
    check_alike(file, model_dir)
