"""Where an artifact may be written, what it says when it cannot, and what the writer seals."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ingot.artifact.codec import decode_manifest
from ingot.artifact.writer import ArtifactWriter, check_writable, refuse_foreign
from ingot.errors import ArtifactError, ResourceError, UsageError
from tests.cli.sample_artifact import write_sample
from tests.runtime.fake_model import make_manifest, weights, write_fake
from tests.support.odd_files import ODD_PATHS, odd_paths
from tests.support.open_files import open_files

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
    assert os.listdir(tmp_path) == (["a"] if found else [])


@pytest.mark.parametrize("name", ODD_PATHS)
def test_a_path_that_nothing_can_be_written_at_is_known_before(tmp_path: Path, name: str) -> None:
    path = Path(odd_paths(tmp_path)[name])
    with pytest.raises(UsageError, match="cannot be written") as info:
        check_writable(path)
    assert info.value.hint
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "loop"]


def test_a_link_that_leads_nowhere_is_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("none")
    for attempt in TRIED:
        with pytest.raises(UsageError, match="cannot be written"):
            attempt(tmp_path / "link" / "a.ingot")
    assert os.listdir(tmp_path) == ["link"]


def test_a_name_leaves_room_for_those_beside_it(tmp_path: Path) -> None:
    """The folder that becomes the artifact has a longer one."""
    check_writable(tmp_path / ("x" * 200))
    with pytest.raises(UsageError, match="File name too long"):
        check_writable(tmp_path / ("x" * 250))


def test_a_path_may_be_relative_or_the_folder_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for path in (".", "a.ingot", "../b.ingot", "x/../c.ingot", "x/y/d.ingot"):
        check_writable(Path(path))
        assert os.listdir(tmp_path) == ["here"] and os.listdir() == []


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


def snapshot(root: Path) -> dict[str, tuple[int, bytes]]:
    """All below a folder: the kind and mode of each thing, and its content or where it leads."""
    found = {}
    for path in root.rglob("*"):
        content = os.readlink(path).encode() if path.is_symlink() else b""
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else content
        found[str(path.relative_to(root))] = (path.lstat().st_mode, content)
    return found


def put_folder(path: Path) -> None:
    path.mkdir()
    (path / "thesis.txt").write_text("precious")


def put_artifact_with_notes(path: Path) -> None:
    # Beside it, and moved there, since a writer may hold the lock of the path.
    (write_sample(path.with_name("beside")) / "notes.txt").write_text("precious")
    path.with_name("beside").rename(path)


def put_hidden_notes(path: Path) -> None:
    put_artifact_with_notes(path)
    (path / "notes.txt").rename(path / ".notes")


FOREIGN: dict[str, Callable[[Path], object]] = {
    "a folder": put_folder,
    "a file": lambda path: path.write_text("precious"),
    "an empty file": lambda path: path.write_text(""),
    "an artifact with notes": put_artifact_with_notes,
    "an artifact with hidden notes": put_hidden_notes,
    "a link to an artifact": lambda path: path.symlink_to(write_sample(path.with_name("other"))),
    "a link to an empty folder": lambda path: path.symlink_to(path.with_name("empty")),
    "a link that leads nowhere": lambda path: path.symlink_to("nowhere"),
    "a pipe": os.mkfifo,
}
MOMENTS = ("before", "while files are written", "when all is sealed")


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("foreign", FOREIGN)
def test_what_is_not_ours_is_never_replaced_whenever_it_came(
    tmp_path: Path, foreign: str, moment: str
) -> None:
    """A compile takes minutes, in which anything can come to lie where its artifact is to be."""
    path, before = tmp_path / "x" / "a.ingot", {}
    (tmp_path / "x" / "empty").mkdir(parents=True)

    def put(now: str) -> None:
        if now == moment:
            FOREIGN[foreign](path)
            found = snapshot(tmp_path)
            before.update({n: what for n, what in found.items() if ".tmp-" not in n})
            before.pop("x/.a.ingot.lock", None)

    def write() -> None:
        with ArtifactWriter(path) as writer:
            assert moment != "before"
            put("while files are written")
            writer.write("golden/x", b"1")
            writer.seal(make_manifest())
            put("when all is sealed")
            writer.publish()

    put("before")
    with pytest.raises(UsageError) as info:
        write()
    assert str(path) in info.value.found and info.value.hint
    assert snapshot(tmp_path) == before


def put_artifact(path: Path) -> None:
    put_artifact_with_notes(path)
    (path / "notes.txt").unlink()


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("put", [put_artifact, Path.mkdir])
def test_an_artifact_and_an_empty_folder_are_replaced_whenever_they_came(
    tmp_path: Path, put: Callable[[Path], object], moment: str
) -> None:
    path = tmp_path / "a.ingot"
    if moment == MOMENTS[0]:
        put(path)
    with ArtifactWriter(path) as writer:
        if moment == MOMENTS[1]:
            put(path)
        writer.write("golden/x", b"1")
        writer.seal(make_manifest())
        if moment == MOMENTS[2]:
            put(path)
        writer.publish()
    assert sorted(os.listdir(path)) == ["golden", "manifest.json"]
    assert os.listdir(path / "golden") == ["x"] and os.listdir(tmp_path) == ["a.ingot"]


def test_a_writer_that_cannot_begin_gives_its_lock_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever stops it, and however often."""
    path = tmp_path / "a.ingot"
    (tmp_path / ".a.ingot.tmp-1-ab").mkdir()
    for error in (KeyboardInterrupt(), MemoryError(), OSError(errno.ENOSPC, "full")):

        def stopped(at: object, mode: int = 0o777, error: BaseException = error) -> None:
            assert ".tmp-" in str(at) or Path(str(at)).exists()
            raise error if ".tmp-" in str(at) else FileExistsError

        with monkeypatch.context() as patch:
            patch.setattr(os, "mkdir", stopped)
            kind = ResourceError if isinstance(error, OSError) else type(error)
            with pytest.raises(kind), ArtifactWriter(path):
                pass
        assert os.listdir(tmp_path) == []
        assert not any(str(tmp_path) in each for each in open_files())


def test_the_lock_is_held_until_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer would take a folder that is being removed for that of a dead one."""
    path, locked = tmp_path / "a.ingot", []
    rmtree = shutil.rmtree

    def watched(folder: Path, **options: object) -> None:
        locked.append((tmp_path / ".a.ingot.lock").exists())
        rmtree(folder, **options)

    monkeypatch.setattr(shutil, "rmtree", watched)
    with ArtifactWriter(path) as writer:
        writer.write("golden/x", b"1")
    assert locked == [True] and os.listdir(tmp_path) == []


def test_an_old_artifact_that_cannot_be_removed_stops_no_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_sample(tmp_path / "a.ingot")

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    with monkeypatch.context() as patch, ArtifactWriter(path) as writer:
        writer.write("golden/x", b"1")
        patch.setattr(os, "rmdir", refused)
        writer.commit(make_manifest())
    assert (path / "golden" / "x").exists()
    write_sample(path)
    assert os.listdir(tmp_path) == ["a.ingot"]  # the next one removes what was left


@pytest.mark.parametrize("data", [b"", weights()[:7], weights()[:100]])
def test_weights_without_a_header_are_not_sealed(tmp_path: Path, data: bytes) -> None:
    def write() -> None:
        with ArtifactWriter(tmp_path / "a.ingot") as writer:
            writer.write("weights/a.safetensors", data)
            writer.commit(make_manifest())

    with pytest.raises(ArtifactError, match=r"weights/a\.safetensors"):
        write()
    assert os.listdir(tmp_path) == []
