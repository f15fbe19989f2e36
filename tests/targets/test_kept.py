"""Files that were built before, of several kinds in one folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ingot.targets import kept

KEYS = [f"{number:064x}" for number in range(4)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INGOT_CACHE", str(tmp_path / "cache"))
    return kept.opened_folder()


def test_each_kind_has_a_bound_of_its_own(folder: Path) -> None:
    kept.keep(folder, KEYS[0], b"object", ".o", 1)
    for age, key in enumerate(reversed(KEYS[1:])):
        kept.keep(folder, key, key.encode(), ".cubin", 9)
        for path in folder.glob(f"{key}-*"):
            os.utime(path, (1000 + age, 1000 + age))
    kept.keep(folder, KEYS[0], b"kernel", ".cubin", 2)
    assert kept.take(folder, KEYS[0], ".o") == b"object"
    assert kept.take(folder, KEYS[0], ".cubin") == b"kernel"
    assert kept.take(folder, KEYS[1], ".cubin") == KEYS[1].encode()
    assert kept.take(folder, KEYS[2], ".cubin") is kept.take(folder, KEYS[3], ".cubin") is None


def test_what_is_damaged_is_not_taken_and_goes(folder: Path) -> None:
    kept.keep(folder, KEYS[0], b"kernel", ".cubin", 1)
    (path,) = folder.iterdir()
    path.write_bytes(b"kernal")
    assert kept.take(folder, KEYS[0], ".cubin") is None
    assert list(folder.iterdir()) == []
