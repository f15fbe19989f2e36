"""Checkpoints to damage, on one thread: with tiny models two threads mostly wait for each other."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers

from tests.support.tiny_models import save_random

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory of every kind, to be copied: whole, in shards, tied."""
    root = tmp_path_factory.mktemp("saved")
    save_random("llama", root / "single")
    save_random("llama", root / "sharded", shard_kilobytes=60)
    save_random("llama_tied", root / "tied")
    save_random("llama", root / "bfloat16", "bfloat16")
    save_random("llama", root / "float16", "float16")
    return root


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Callable[[str], Path]:
    return lambda name: Path(shutil.copytree(saved / name, tmp_path / name))
