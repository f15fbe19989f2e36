"""Files that were built before: several kinds in one folder, which may be somebody else's, too."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ingot.cache import builds
from ingot.cache.builds import Builds
from ingot.cli.main import main

KEY = "0123456789abcdef" * 4
OWN = (
    f"{KEY}-0123456789abcdef.cubin",
    f"{KEY}-0123456789abcdef.o",
    f"{KEY}.123.part",
)
OTHERS = ("saxpy.cu", "a.o", f"{KEY}.o", f"{KEY}-0123456789abcdef.o.txt", f"{KEY[1:]}.1.part")
KEYS = [f"{number:064x}" for number in range(4)]


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Builds:
    monkeypatch.setenv("INGOT_CACHE", str(tmp_path / "cache"))
    return Builds.opened()


def test_the_longest_unused_go_where_all_kinds_together_take_too_much(
    kept: Builds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builds, "MOST_BYTES", 24)
    for age, (key, suffix) in enumerate(zip(KEYS, (".o", ".cubin", ".front"), strict=False)):
        kept.keep(key, b"8 bytes.", suffix)
        for path in kept.folder.glob(f"{key}-*"):
            os.utime(path, (1000 + age, 1000 + age))
    assert kept.take(KEYS[0], ".o") == b"8 bytes."  # it is used again
    kept.keep(KEYS[3], b"8 others", ".o")
    assert kept.take(KEYS[1], ".cubin") is None
    assert kept.take(KEYS[2], ".front") == kept.take(KEYS[0], ".o") == b"8 bytes."
    assert kept.take(KEYS[3], ".o") == b"8 others"


def test_many_files_are_kept() -> None:
    """Of a target for each level and size of the models that somebody works on: 100 KB each."""
    assert builds.MOST_BYTES >= 1000 * 100_000


def test_what_is_damaged_is_not_taken_and_goes(kept: Builds) -> None:
    kept.keep(KEYS[0], b"kernel", ".cubin")
    (path,) = kept.folder.iterdir()
    path.write_bytes(b"kernal")
    assert kept.take(KEYS[0], ".cubin") is None
    assert list(kept.folder.iterdir()) == []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "kernels"
    path.mkdir()
    for name in OWN:
        (path / name).write_text("")
    return path


def test_a_folder_of_its_own_goes(folder: Path) -> None:
    assert sorted(entry.path.name for entry in Builds(folder).entries()) == sorted(OWN)
    Builds(folder).clear()
    assert not folder.exists()
    Builds(folder).clear()  # one that is not there is no fault


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
