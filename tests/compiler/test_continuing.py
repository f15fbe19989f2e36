"""Texts that the reference continues: each step gives what the whole text would."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ingot.compiler.continuing import Continuing
from ingot.compiler.export import export
from ingot.compiler.reference import reference_logits
from ingot.models import registry
from ingot.models.checkpoints.checkpoint import Checkpoint
from ingot.models.model_dir import ModelDir
from tests.support.tiny_models import save_random


@pytest.mark.cases(core=2)
@pytest.mark.parametrize("family", ["qwen3", "mistral", "gemma2", "deepseek_v3"])
def test_a_step_gives_what_the_whole_text_does(family: str, tmp_path: Path) -> None:
    """With windows, soft caps, and values that are a part of the keys."""
    model = save_random(family, tmp_path / "model")
    config = registry.load_config(ModelDir.open(model))
    module = registry.build(config, max_model_len=64)
    graph = export(module, config)
    rng = torch.Generator().manual_seed(0)
    texts = [torch.randint(config.vocab_size, (n,), generator=rng).tolist() for n in (9, 14, 11)]
    with Checkpoint.open(ModelDir.open(model), config, module) as checkpoint:
        whole = reference_logits(graph, checkpoint.read, texts)
        growing = Continuing(graph, checkpoint.read)
        found = {name: [] for name in range(3)}
        known = [0, 0, 0]
        for lengths in ([4, 7, 0], [1, 1, 3], [1, 0, 1], [3, 6, 7]):
            news = {
                name: texts[name][known[name] :][:length]
                for name, length in enumerate(lengths)
                if length
            }
            for name, row in growing.step(news).items():
                known[name] += len(news[name])
                found[name].append((known[name] - 1, row))
    for name, rows in found.items():
        for position, row in rows:
            torch.testing.assert_close(row, whole[name][position], rtol=1e-4, atol=1e-5)
