"""Parameters that are a part of every head of a source tensor."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from ingot.errors import CheckpointError
from ingot.models import registry
from ingot.models.checkpoint import Checkpoint
from ingot.models.config import ModelConfig
from ingot.models.family import Family, Weights
from ingot.models.weight_rules import HeadRows
from tests.support.tiny_models import save_random

HEADS, COLUMNS = 3, 10
SIZES = (4, 6, 5)
SHAPES = {
    "flat": (HEADS * 4, COLUMNS),
    "deep": (HEADS, 6, COLUMNS),
    "turned": (HEADS, COLUMNS, 5),
    "flat_bias": (HEADS * 4,),
    "deep_bias": (HEADS * 6,),
    "turned_bias": (HEADS * 5,),
}


def weights(config: ModelConfig) -> Weights:
    sizes = SIZES if config.num_layers else ()
    return {
        "flat": HeadRows("fused", sizes, 0),
        "deep": HeadRows("fused", sizes, 1),
        "turned": HeadRows("fused", sizes, 2, transposed=True),
    } | {f"{name}_bias": HeadRows("bias", sizes, i) for i, name in enumerate(list(SHAPES)[:3])}


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, ModelConfig, nn.Module]:
    """A directory to write `fused` and `bias` into, a config, and a module with the parts."""
    config = registry.load_config(save_random("llama", tmp_path / "config"))
    family = Family(
        name="heads", architectures=("Heads",), parse=lambda _: config, weights=weights, tied={}
    )
    monkeypatch.setitem(registry._registered, "llama", family)
    module = nn.Module()
    for name, shape in SHAPES.items():
        module.register_parameter(name, nn.Parameter(torch.empty(shape)))
    return tmp_path, config, module


def stored(rows: int = HEADS * sum(SIZES)) -> dict[str, torch.Tensor]:
    return {
        "fused": torch.arange(rows * COLUMNS, dtype=torch.float32).view(rows, COLUMNS),
        "bias": torch.arange(rows, dtype=torch.float32),
    }


def test_parts_of_heads(opened: tuple[Path, ModelConfig, nn.Module]) -> None:
    model_dir, config, module = opened
    save_file(stored(), model_dir / "model.safetensors")
    heads = stored()["fused"].view(HEADS, sum(SIZES), COLUMNS)
    biases = stored()["bias"].view(HEADS, sum(SIZES))
    expected = {
        "flat": heads[:, :4].flatten(0, 1),
        "deep": heads[:, 4:10],
        "turned": heads[:, 10:].transpose(1, 2),
        "flat_bias": biases[:, :4].flatten(),
        "deep_bias": biases[:, 4:10].flatten(),
        "turned_bias": biases[:, 10:].flatten(),
    }
    with Checkpoint.open(model_dir, config, module) as checkpoint:
        for name, values in expected.items():
            assert torch.equal(checkpoint.read(name), values), name
            assert torch.equal(checkpoint.read(name, 1, 3), values[1:3]), name
            assert torch.equal(torch.cat(list(checkpoint.pieces(name, 90))), values), name


def test_as_many_heads_as_rows_of_a_part(opened: tuple[Path, ModelConfig, nn.Module]) -> None:
    """Entries of a parameter are not its rows: here their numbers agree."""
    model_dir, config, _ = opened
    module = nn.Module()
    for name, shape in {"deep": (6, 6, COLUMNS), "turned": (6, COLUMNS, 5)}.items():
        module.register_parameter(name, nn.Parameter(torch.empty(shape)))
    fused = stored(6 * sum(SIZES))["fused"]
    save_file({"fused": fused}, model_dir / "model.safetensors")
    with Checkpoint.open(model_dir, config, module) as checkpoint:
        heads = fused.view(6, sum(SIZES), COLUMNS)
        assert torch.equal(checkpoint.read("deep"), heads[:, 4:10])
        assert torch.equal(checkpoint.read("turned"), heads[:, 10:].transpose(1, 2))


@pytest.mark.parametrize("rows", [HEADS * sum(SIZES) - 1, (HEADS + 1) * sum(SIZES)])
def test_a_source_with_other_heads(rows: int, opened: tuple[Path, ModelConfig, nn.Module]) -> None:
    model_dir, config, module = opened
    save_file(stored(rows), model_dir / "model.safetensors")
    with pytest.raises(CheckpointError, match=rf"fused \[{rows}, 10\] instead of \[45, 10\]"):
        Checkpoint.open(model_dir, config, module)


def test_values_that_are_not_finite(opened: tuple[Path, ModelConfig, nn.Module]) -> None:
    model_dir, config, module = opened
    tensors = stored()
    tensors["fused"][sum(SIZES) + 11, 2] = math.inf
    save_file(tensors, model_dir / "model.safetensors")
    with Checkpoint.open(model_dir, config, module) as checkpoint:
        checkpoint.read("deep")
        with pytest.raises(CheckpointError, match="fused holds values that are not finite"):
            checkpoint.read("turned")
