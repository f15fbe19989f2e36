"""A model directory is looked through once, and each of its files is read and parsed once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ingot.compiler import compile as compiler
from ingot.compiler.explain import explain
from ingot.compiler.model import OpenModel
from ingot.compiling import compile_checked
from ingot.models.model_dir import ModelDir
from tests.support.gguf_files import write_gguf
from tests.support.readings import readings
from tests.support.tiny_models import save_random


class Opened(Exception):
    """The model is open, and nothing more is asked of it."""


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What JSON was parsed."""
    texts: list[Any] = []
    loads = json.loads

    def noted(text: Any, **options: Any) -> Any:
        texts.append(text)
        return loads(text, **options)

    monkeypatch.setattr(json, "loads", noted)
    return texts


def open_model(path: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compile as far as the open model, which also says what of it changes nothing."""

    def stop(model: OpenModel, clock: object) -> None:
        assert model.ignored == ()
        model.checkpoint.close()
        raise Opened

    monkeypatch.setattr(compiler, "front_of", stop)
    with pytest.raises(Opened):
        compile_checked(path, out)


def test_a_compile_reads_each_file_once(
    shakespeare_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parsed: list[Any]
) -> None:
    folder = Path(shutil.copytree(shakespeare_dir, tmp_path / "model"))
    config = (folder / "config.json").read_bytes()
    with readings(folder) as seen:
        open_model(folder, tmp_path / "a.ingot", monkeypatch)
    assert {".", "config.json", "model.safetensors", "tokenizer.json"} <= seen.keys()
    assert set(seen.values()) == {1}, seen
    assert parsed.count(config) == 1


def test_explaining_reads_each_file_once(shakespeare_dir: Path, parsed: list[Any]) -> None:
    config = (shakespeare_dir / "config.json").read_bytes()
    with readings(shakespeare_dir) as seen:
        assert explain(shakespeare_dir).supported
    assert {"config.json", "model.safetensors"} <= seen.keys()
    assert set(seen.values()) == {1}, seen
    assert parsed.count(config) == 1


def test_a_gguf_file_is_opened_for_its_metadata_and_for_its_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_random("llama", tmp_path / "model", tokenizer=True)
    (tmp_path / "alone").mkdir()
    path = write_gguf(folder, tmp_path / "alone" / "model.gguf")
    with readings(path.parent) as seen:
        open_model(path, tmp_path / "a.ingot", monkeypatch)
    assert seen == {path.name: 2}


def test_the_control_of_all_above(shakespeare_dir: Path) -> None:
    with readings(shakespeare_dir) as seen:
        for _ in range(2):
            assert ModelDir.open(shakespeare_dir).config
        (shakespeare_dir / "config.json").read_text()
    assert seen == {".": 2, "config.json": 3}
