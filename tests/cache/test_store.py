"""Files that were built before, of several kinds in one folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ingot.cache import store

KEYS = [f"{number:064x}" for number in range(4)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INGOT_CACHE", str(tmp_path / "cache"))
    return store.opened_folder()


def test_the_longest_unused_go_where_all_kinds_together_take_too_much(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "MOST_BYTES", 24)
    for age, (key, suffix) in enumerate(zip(KEYS, (".o", ".cubin", ".front"), strict=False)):
        store.keep(folder, key, b"8 bytes.", suffix)
        for path in folder.glob(f"{key}-*"):
            os.utime(path, (1000 + age, 1000 + age))
    assert store.take(folder, KEYS[0], ".o") == b"8 bytes."  # it is used again
    store.keep(folder, KEYS[3], b"8 others", ".o")
    assert store.take(folder, KEYS[1], ".cubin") is None
    assert store.take(folder, KEYS[2], ".front") == store.take(folder, KEYS[0], ".o") == b"8 bytes."
    assert store.take(folder, KEYS[3], ".o") == b"8 others"


def test_many_files_are_kept() -> None:
    """Of a target for each level and size of the models that somebody works on: 100 KB each."""
    assert store.MOST_BYTES >= 1000 * 100_000


def test_what_is_damaged_is_not_taken_and_goes(folder: Path) -> None:
    store.keep(folder, KEYS[0], b"kernel", ".cubin")
    (path,) = folder.iterdir()
    path.write_bytes(b"kernal")
    assert store.take(folder, KEYS[0], ".cubin") is None
    assert list(folder.iterdir()) == []
