"""GGUF files of LFM2: layers without key-value heads are convolutions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.gguf.test_against_transformers import error, original, ours, theirs
from tests.models.gguf.test_expert_architectures import check_alike, save
from tests.support.core import core
from tests.support.gguf_files import Type, write_gguf
from tests.support.tiny_models import save_random

NAMES = ("lfm2", "lfm2moe", "lfm2_conv")


@pytest.mark.parametrize("name", core("lfm2", "lfm2moe", further=NAMES))
def test_a_file_is_the_model_of_its_directory(name: str, tmp_path: Path) -> None:
    model_dir = save(name, tmp_path / "model")
    check_alike(write_gguf(model_dir, tmp_path / "m.gguf", Type.BF16), model_dir)


@pytest.mark.parametrize("name", core("lfm2moe", further=NAMES))
def test_logits_are_those_of_the_original(name: str, tmp_path: Path) -> None:
    model_dir = save_random(name, tmp_path / "model")
    path = write_gguf(model_dir, tmp_path / "m.gguf")
    assert error(ours(path, 40), theirs(original(model_dir), 40)) <= 1e-5


def test_convolutions_stay_numbers_where_matrices_are_in_blocks(tmp_path: Path) -> None:
    model_dir = save_random("lfm2", tmp_path / "model")
    path = write_gguf(
        model_dir,
        tmp_path / "m.gguf",
        lambda tensor: Type.F32 if "shortconv.conv" in tensor else Type.Q8_0,
    )
    assert error(ours(path, 40), theirs(original(model_dir), 40)) <= 5e-2
