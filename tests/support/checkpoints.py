"""Checkpoints to damage, and the errors that must follow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from ingot.errors import CheckpointError
from ingot.models import registry
from ingot.models.checkpoints.checkpoint import Checkpoint, materialize
from ingot.models.model_dir import ModelDir

Tensors = dict[str, torch.Tensor]
Q = "model.layers.0.self_attn.q_proj.weight"
NORM = "model.norm.weight"
EMBED = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


def build(model_dir: Path) -> tuple[Checkpoint, nn.Module]:
    """The open checkpoint of a directory and its module."""
    config = registry.load_config(ModelDir.open(model_dir))
    module = registry.build(config, max_model_len=128)
    return Checkpoint.open(ModelDir.open(model_dir), config, module), module


def plain_module(model: Path) -> nn.Module:
    """The plain module with the numbers of the checkpoint."""
    checkpoint, module = build(model)
    with checkpoint:
        materialize(module, checkpoint)
    return module


def module_logits(module: nn.Module, tokens: list[int]) -> np.ndarray:
    with torch.inference_mode():
        logits = module(torch.tensor([tokens]), torch.arange(len(tokens))[None])
    return logits[0].float().numpy()


def plain_logits(model: Path, tokens: list[int]) -> np.ndarray:
    """Logits of the plain module on the numbers of the checkpoint."""
    return module_logits(plain_module(model), tokens)


def edit(model_dir: Path, change: Callable[[Tensors], object]) -> Path:
    """Changes the tensors of a single-file checkpoint."""
    path = model_dir / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})
    return model_dir


def refused(model_dir: Path, named: str) -> CheckpointError:
    """The error of opening a checkpoint, which must name the fault and a fix."""
    with pytest.raises(CheckpointError) as caught:
        build(model_dir)
    assert named in caught.value.found
    assert caught.value.hint
    return caught.value


def with_header(path: Path, header: str | bytes, data: bytes = bytes(8)) -> None:
    """Writes a safetensors file with this header, whatever it says."""
    text = header if isinstance(header, bytes) else header.encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
