"""Attention sinks in the block library: who owns them, where they are read, what they change."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ingot.compiler.explain import explain
from ingot.models import registry
from ingot.models.checkpoints.checkpoint import Checkpoint, materialize
from ingot.models.model_dir import ModelDir
from tests.support.checkpoints import edit, refused
from tests.support.sunk_model import STORED, error, judged, known, save, tokens

NAMES = [f"model.layers.{i}.self_attn.sinks" for i in range(2)]


@pytest.mark.parametrize("length", [1, 5, 40])
def test_logits_are_those_of_gpt_oss_attention(tmp_path: Path, length: int) -> None:
    """The control: without sinks they are others."""
    model, ids = save(tmp_path), tokens(length)
    with known():
        config = registry.load_config(ModelDir.open(tmp_path))
        module = registry.build(config, max_model_len=64)
        with Checkpoint.open(ModelDir.open(tmp_path), config, module) as checkpoint:
            materialize(module, checkpoint)
    positions = torch.arange(length)[None]
    with torch.no_grad():
        got = module(torch.tensor([ids]), positions)[0]
    assert error(got, judged(model, ids)) < 1e-5
    assert error(got, judged(model, ids, sinks=False)) > 1e-2


def test_sinks_are_parameters_of_the_layers_that_have_some(tmp_path: Path) -> None:
    save(tmp_path)
    with known():
        config = registry.load_config(ModelDir.open(tmp_path))
        module = registry.build(config, max_model_len=64)
        told = explain(tmp_path).features
    assert [name for name, _ in module.named_parameters() if "sinks" in name] == NAMES
    heads = config.layers[0].mixer.num_heads
    assert {tuple(module.get_parameter(name).shape) for name in NAMES} == {(heads,)}
    assert "attention sinks in 2 layers" in told


def test_a_checkpoint_without_its_sinks_is_refused(tmp_path: Path) -> None:
    save(tmp_path)
    edit(tmp_path, lambda tensors: tensors.pop(STORED.format(i=1)))
    with known():
        refused(tmp_path, f"lacks {STORED.format(i=1)}")
