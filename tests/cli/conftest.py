"""A model directory that a fake compiler turns into the sample artifact."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingot import compiled
from tests.cli.sample_artifact import write_sample


@pytest.fixture
def model_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model directory; what is compiled of it, with the cache, is this test's own."""

    def compile(source: Path, artifact: Path, options: object) -> None:
        compiled.say(f"compiling {source}")
        write_sample(artifact)

    monkeypatch.setenv("INGOT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(compiled, "_compile", compile)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder
