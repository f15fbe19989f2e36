"""The bundled model's weights, and what they compute."""

from __future__ import annotations

import pytest
import torch

from ingot.compiler.reference import reference_logits
from ingot.models import registry
from ingot.models.checkpoints.checkpoint import Checkpoint
from ingot.models.model_dir import ModelDir
from tests.compiler.plans import MODEL, PROMPTS, graph


@pytest.fixture(scope="session")
def checkpoint() -> Checkpoint:
    config = registry.load_config(ModelDir.open(MODEL))
    return Checkpoint.open(ModelDir.open(MODEL), config, registry.build(config, max_model_len=256))


@pytest.fixture(scope="session")
def reference(checkpoint: Checkpoint) -> list[torch.Tensor]:
    return reference_logits(graph(), checkpoint.read, PROMPTS)
