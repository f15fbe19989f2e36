"""Where an artifact may be written, what it says when it cannot, and what the writer seals."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ingot.artifact.codec import decode_manifest
from ingot.artifact.writer import ArtifactWriter, check_writable, refuse_foreign
from ingot.errors import ArtifactError, ResourceError, UsageError
from tests.runtime.fake_model import make_manifest, weights, write_fake
from tests.support.odd_files import ODD_PATHS, odd_paths

MANIFEST = '{"format": [2, 0], "more": 1}'


@pytest.mark.parametrize("name", ["source", ".git", "README.md", "Golden", "weights.old", "a"])
def test_what_is_no_part_of_an_artifact_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "manifest.json").write_text(MANIFEST)
    refuse_foreign(tmp_path)
    (tmp_path / name).mkdir()
    with pytest.raises(UsageError, match=f"holds {name}, which is no part") as info:
        refuse_foreign(tmp_path)
    assert info.value.hint


@pytest.mark.parametrize(
    ("text", "ours"),
    [
        (MANIFEST, True),
        ('{\n "format": [', True),
        (' { "format" : [2,', True),
        ("", False),
        ("{}", False),
        ('{"format": "ours"', False),
        ('{"first": {"format": [2, 0]}}', False),
        ('[{"format": [2, 0]}]', False),
    ],
)
def test_a_manifest_begins_with_its_format(tmp_path: Path, text: str, ours: bool) -> None:
    (tmp_path / "manifest.json").write_text(text)
    if ours:
        refuse_foreign(tmp_path)
    else:
        with pytest.raises(UsageError, match="is not an artifact"):
            refuse_foreign(tmp_path)


TRIED: tuple[Callable[[Path], object], ...] = (check_writable, write_fake)


@pytest.mark.parametrize("attempt", TRIED)
def test_folders_above_are_made_only_for_an_artifact(
    tmp_path: Path, attempt: Callable[[Path], object]
) -> None:
    attempt(tmp_path / "a" / "b" / "c.ingot")
    found = sorted(path.name for path in tmp_path.rglob("*.ingot"))
    assert found == (["c.ingot"] if attempt is write_fake else [])
    assert (tmp_path / "a").exists() == bool(found)


@pytest.mark.parametrize("name", ODD_PATHS)
def test_a_path_that_nothing_can_be_written_at_is_known_before(tmp_path: Path, name: str) -> None:
    path = Path(odd_paths(tmp_path)[name])
    with pytest.raises(UsageError, match="cannot be written") as info:
        check_writable(path)
    assert info.value.hint
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "loop"]


def test_a_name_leaves_room_for_those_beside_it(tmp_path: Path) -> None:
    """The folder that becomes the artifact has a longer one."""
    check_writable(tmp_path / ("x" * 200))
    with pytest.raises(UsageError, match="File name too long"):
        check_writable(tmp_path / ("x" * 250))


def test_what_is_at_the_path_is_looked_at_before(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(UsageError, match="is not an artifact"):
        check_writable(tmp_path)
    assert os.listdir(tmp_path) == ["thesis.txt"]


def test_a_folder_is_tried_and_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Permissions do not tell of a disk that can only be read."""

    def read_only(path: object, mode: int = 0o777) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(os, "mkdir", read_only)
    with pytest.raises(UsageError, match="Read-only file system"):
        check_writable(tmp_path / "a.ingot")


FULL = ("ENOSPC", "EDQUOT", "EFBIG", "ENOMEM")


@pytest.mark.parametrize("name", FULL)
@pytest.mark.parametrize("file", [None, "weights/w"])
def test_whatever_has_run_out_is_told_with_its_place(
    tmp_path: Path, name: str, file: str | None
) -> None:
    number = getattr(errno, name)
    error = OSError(number, os.strerror(number), *([file] if file else []))
    said = f"{os.strerror(number)}: {file or 'while writing the artifact'}"
    with (
        pytest.raises(ResourceError, match=f"^{said}\n") as info,
        ArtifactWriter(tmp_path / "a.ingot"),
    ):
        raise error
    assert "Nothing was left behind" in info.value.hint


def test_a_path_means_what_it_meant_when_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    with ArtifactWriter("a.ingot") as writer:
        monkeypatch.chdir(elsewhere)
        writer.write("golden/x", b"1")
        writer.commit(make_manifest())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.ingot", "elsewhere"]
    assert list(elsewhere.iterdir()) == []


def test_the_folder_around_an_artifact_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    write_fake(tmp_path / "a.ingot")
    assert tmp_path.stat().st_mode & 0o777 == 0o700


def test_the_manifest_is_the_writers_own(tmp_path: Path) -> None:
    with ArtifactWriter(tmp_path / "a.ingot") as writer:
        writer.write("manifest.json", b"{}")
        with pytest.raises(ArtifactError, match=r"manifest\.json is written by the writer"):
            writer.commit(make_manifest())
    assert list(tmp_path.iterdir()) == []


def test_every_file_is_sealed_by_its_size_and_hash(tmp_path: Path) -> None:
    data = {"weights/a.safetensors": weights(), "golden/empty": b"", "golden/x": b"\0" * 1000}
    with ArtifactWriter(tmp_path / "a.ingot") as writer:
        for name, content in data.items():
            writer.write(name, content)
        sealed = writer.commit(make_manifest())
    header = 8 + int.from_bytes(weights()[:8], "little")
    assert decode_manifest((tmp_path / "a.ingot/manifest.json").read_bytes()) == sealed
    assert {
        name: (entry.size, entry.sha256, entry.header_sha256)
        for name, entry in sealed.files.items()
    } == {
        name: (
            len(content),
            hashlib.sha256(content).hexdigest(),
            hashlib.sha256(content[:header]).hexdigest() if "safetensors" in name else "",
        )
        for name, content in data.items()
    }
