"""The folder of kept object files loses what ingot has written, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingot.cache.kernel_files import clear, kept_files
from ingot.cli.main import main

KEY = "0123456789abcdef" * 4
OWN = (
    f"{KEY}-0123456789abcdef.cubin",
    f"{KEY}-0123456789abcdef.o",
    f"{KEY}.123.part",
)
OTHERS = ("saxpy.cu", "a.o", f"{KEY}.o", f"{KEY}-0123456789abcdef.o.txt", f"{KEY[1:]}.1.part")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "kernels"
    path.mkdir()
    for name in OWN:
        (path / name).write_text("")
    return path


def test_a_folder_of_its_own_goes(folder: Path) -> None:
    assert sorted(path.name for path in kept_files(folder)) == sorted(OWN)
    clear(folder)
    assert not folder.exists()
    clear(folder)  # one that is not there is no fault


def test_files_of_others_stay_when_the_cache_is_cleaned(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in OTHERS:
        (folder / name).write_text("precious")
    (folder / f"{KEY}.9.part").mkdir()
    monkeypatch.setenv("INGOT_CACHE", str(folder.parent))
    assert main(["cache", "--clean"]) == 0
    left = {*OTHERS, f"{KEY}.9.part"}
    assert {path.name for path in folder.iterdir()} == left
