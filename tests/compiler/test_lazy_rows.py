"""Large matrices of a checkpoint, decoded by rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Type

from ingot.compiler import lazy_rows
from ingot.compiler.lazy_rows import LazyRows, by_rows
from ingot.models import registry
from ingot.models.checkpoints.checkpoint import Checkpoint
from ingot.models.model_dir import ModelDir
from tests.support.gguf_files import write_gguf

MODEL = Path(__file__).parents[2] / "golden" / "models" / "shakespeare"
TABLE = "model.embed_tokens.weight"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    path = write_gguf(MODEL, tmp_path_factory.mktemp("rows") / "model.gguf", Type.Q4_1)
    config = registry.load_config(ModelDir.open(path))
    return Checkpoint.open(ModelDir.open(path), config, registry.build(config, max_model_len=64))


def test_rows_are_those_of_the_whole(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lazy_rows, "LARGE", 0)
    whole = checkpoint.read(TABLE)
    rows = by_rows(checkpoint)(TABLE)
    assert isinstance(rows, LazyRows) and rows.shape == whole.shape
    ids = torch.tensor([[5, 0, 5, len(whole) - 1]])
    for index in (slice(None), slice(3, 9), slice(len(whole) - 2, len(whole) + 5), ids):
        assert torch.equal(rows[index], whole[index])


def test_what_is_small_or_stored_as_it_is_comes_whole(checkpoint: Checkpoint) -> None:
    read = by_rows(checkpoint)
    assert all(isinstance(read(name), torch.Tensor) for name in checkpoint.names)
