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
    "first": (HEADS * 4, COLUMNS),
    "second": (HEADS * 6, COLUMNS),
    "turned": (HEADS * COLUMNS, 5),
    "first_bias": (HEADS * 4,),
    "second_bias": (HEADS * 6,),
    "turned_bias": (HEADS * 5,),
}


def weights(config: ModelConfig) -> Weights:
    sizes = SIZES if config.num_layers else ()
    return {
        "first": HeadRows("fused", sizes, 0),
        "second": HeadRows("fused", sizes, 1),
        "turned": HeadRows("fused", sizes, 2, columns=COLUMNS),
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
        "first": heads[:, :4].flatten(0, 1),
        "second": heads[:, 4:10].flatten(0, 1),
        "turned": heads[:, 10:].transpose(1, 2).flatten(0, 1),
        "first_bias": biases[:, :4].flatten(),
        "second_bias": biases[:, 4:10].flatten(),
        "turned_bias": biases[:, 10:].flatten(),
    }
    with Checkpoint.open(model_dir, config, module) as checkpoint:
        for name, values in expected.items():
            assert torch.equal(checkpoint.read(name), values), name
            assert torch.equal(checkpoint.read(name, 1, 11), values[1:11]), name
            assert torch.equal(torch.cat(list(checkpoint.pieces(name, 90))), values), name


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
        checkpoint.read("second")
        with pytest.raises(CheckpointError, match="fused holds values that are not finite"):
            checkpoint.read("turned")
