"""The cache of compiled models: what lies there, in which order it goes, and what never goes."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ingot import compiled
from ingot.artifact import lock
from ingot.artifact.lock import file_lock
from ingot.artifact.reader import Artifact
from ingot.cache import artifacts
from ingot.cache.artifacts import Artifacts, entry_name
from ingot.cache.store import touch
from ingot.errors import ArtifactError, UsageError
from ingot.settings import parse_bytes, settings
from tests.cli.sample_artifact import write_sample

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def kept(tmp_path: Path) -> list[Path]:
    """Three artifacts in a cache, the first used longest ago."""
    paths = []
    for index, model in enumerate(("owner/one", "two", "three--x")):
        path = write_sample(tmp_path / entry_name(model, f"{index}" * 64))
        os.utime(path, (index, index))
        paths.append(path)
    (tmp_path / "notes.txt").write_text("of somebody else")
    (tmp_path / "other-folder.ingot").mkdir()
    return paths


def size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def test_entries_are_the_artifacts_the_last_used_first(tmp_path: Path, kept: list[Path]) -> None:
    found = Artifacts(tmp_path).entries()
    assert [entry.path for entry in found] == kept[::-1]
    assert [(entry.model, entry.id) for entry in found[1:]] == [
        ("two", "11111111"),
        ("owner/one", "00000000"),
    ]
    assert found[0].nbytes == size(kept[2]) and found[0].last_used == 2
    assert Artifacts(tmp_path / "none").entries() == []


def test_using_one_makes_it_the_last(tmp_path: Path, kept: list[Path]) -> None:
    touch(kept[0])
    assert Artifacts(tmp_path).entries()[0].path == kept[0]
    Artifact.open(kept[0])  # it is as good as before


@pytest.mark.parametrize("room", [0, 1, 2, 3])
def test_the_longest_unused_go_first(tmp_path: Path, kept: list[Path], room: int) -> None:
    removed = Artifacts(tmp_path).shrink(room * size(kept[0]) + 10)
    assert [entry.path for entry in removed] == kept[: 3 - room]
    assert [entry.path for entry in Artifacts(tmp_path).entries()] == kept[3 - room :][::-1]
    assert (tmp_path / "notes.txt").exists() and (tmp_path / "other-folder.ingot").exists()


def test_what_is_to_be_kept_stays(tmp_path: Path, kept: list[Path]) -> None:
    assert [entry.path for entry in Artifacts(tmp_path).shrink(0, keep=kept[0])] == kept[1:]
    assert [entry.path for entry in Artifacts(tmp_path).entries()] == kept[:1]


def test_what_is_open_stays(tmp_path: Path, kept: list[Path]) -> None:
    artifact = Artifact.open(kept[1])
    assert not Artifacts(tmp_path).remove(Artifacts(tmp_path).entries()[1])
    assert [entry.path for entry in Artifacts(tmp_path).shrink(0)] == [kept[0], kept[2]]
    assert Artifact.open(kept[1]).manifest == artifact.manifest
    del artifact
    gc.collect()
    assert [entry.path for entry in Artifacts(tmp_path).shrink(0)] == [kept[1]]


HOLD = """
import sys
from ingot.artifact.reader import Artifact
artifact = Artifact.open(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


def test_what_another_process_has_open_stays_until_it_ends(
    tmp_path: Path, kept: list[Path]
) -> None:
    command = [sys.executable, "-c", HOLD, str(kept[1])]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT) as process:
        assert process.stdout.readline() == "open\n"
        assert [entry.path for entry in Artifacts(tmp_path).shrink(0)] == [kept[0], kept[2]]
        process.kill()
    assert [entry.path for entry in Artifacts(tmp_path).shrink(0)] == [kept[1]]


def test_an_artifact_that_cannot_be_opened_is_not_held(tmp_path: Path, kept: list[Path]) -> None:
    (kept[0] / "weights" / "cpu-float32.safetensors").unlink()
    with pytest.raises(ArtifactError):
        Artifact.open(kept[0])
    (kept[1] / "manifest.json").write_text("{}")
    with pytest.raises(ArtifactError):
        Artifact.open(kept[1])
    gc.collect()
    assert len(Artifacts(tmp_path).shrink(0)) == 3


def test_what_another_user_owns_stays(
    tmp_path: Path, kept: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def refused(path: Path, target: Path) -> Path:
        if path == kept[1]:
            raise PermissionError(1, "Operation not permitted", str(path))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refused)
    assert [entry.path for entry in Artifacts(tmp_path).shrink(0)] == [kept[0], kept[2]]
    assert Artifact.open(kept[1])


def test_what_this_user_may_rename_but_not_empty_stays(
    tmp_path: Path, kept: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder that a group may write, of an artifact that its owner alone may."""
    access = os.access
    monkeypatch.setattr(
        artifacts.os, "access", lambda path, mode: path != kept[1] and access(path, mode)
    )
    assert not Artifacts(tmp_path).remove(Artifacts(tmp_path).entries()[1])
    assert [entry.path for entry in Artifacts(tmp_path).shrink(0)] == [kept[0], kept[2]]
    assert Artifact.open(kept[1])


def test_an_interrupted_removal_leaves_no_artifact(
    tmp_path: Path, kept: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(artifacts.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            Artifacts(tmp_path).shrink(0)
    assert [entry.path for entry in Artifacts(tmp_path).entries()] == kept[:0:-1]
    left = [path for path in tmp_path.iterdir() if ".tmp-" in path.name]
    assert len(left) == 1
    with pytest.raises(ArtifactError, match="never finished"):
        Artifact.open(left[0])
    Artifacts(tmp_path).shrink(10**9)
    assert not left[0].exists() and len(Artifacts(tmp_path).entries()) == 2


def test_leftovers_go_unless_a_compile_is_at_work(tmp_path: Path) -> None:
    dead, busy = (tmp_path / f".{name}-0.ingot.tmp-1-aa" for name in ("dead", "busy"))
    dead.mkdir()
    busy.mkdir()
    with file_lock(tmp_path / ".busy-0.ingot.lock"):
        Artifacts(tmp_path).shrink(0)
        assert busy.exists() and not dead.exists()
    Artifacts(tmp_path).shrink(0)
    assert list(tmp_path.iterdir()) == []


def test_where_there_are_no_locks_artifacts_go_and_leftovers_stay(
    tmp_path: Path, kept: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can be held there; but a compile may be at work."""

    def no_locks(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    left = tmp_path / ".a-0.ingot.tmp-1-aa"
    left.mkdir()
    monkeypatch.setattr(lock.fcntl, "flock", no_locks)
    assert [entry.path for entry in Artifacts(tmp_path).shrink(0)] == kept
    assert left.exists()


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model whose compile writes a sample, into the cache that `kept` lies in."""

    def compile_checked(source: Path, artifact: Path, options: object) -> object:
        write_sample(artifact)
        return type("Report", (), {"seconds": 1.0})

    monkeypatch.setattr("ingot.compiling.compile_checked", compile_checked)
    monkeypatch.setenv("INGOT_CACHE", str(tmp_path))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


@pytest.mark.cases(core=3)
@pytest.mark.parametrize(
    ("room", "left"), [("", 3), ("0", 0), (0, 0), (1, 0), (1.9, 0), (2, 1), (3.9, 2), (4, 3)]
)
def test_the_limit_holds_after_a_compile(
    tmp_path, kept, model, room, left, monkeypatch, capsys
) -> None:
    """It counts what was just compiled, which stays; none and zero are two limits."""
    limit = room if isinstance(room, str) else f"{int(room * size(kept[0]))}"
    monkeypatch.setenv("INGOT_CACHE_LIMIT", limit)
    new = compiled.resolve(model)
    assert [entry.path for entry in Artifacts(tmp_path).entries()] == [new, *kept[3 - left :][::-1]]
    told = [line for line in capsys.readouterr().err.splitlines() if "removed" in line]
    amount = f"{int(limit or 0) / 1e9:g} GB"
    said = [f"ingot: removed {p.name}: the cache is limited to {amount}" for p in kept[: 3 - left]]
    assert told == said
    others = {"model", "notes.txt", "other-folder.ingot", new.name}
    assert {path.name for path in tmp_path.iterdir()} == others | {
        path.name for path in kept[3 - left :]
    }
    monkeypatch.setenv("INGOT_CACHE_LIMIT", "0")
    assert compiled.resolve(model) == new  # what is found again removes nothing
    assert len(Artifacts(tmp_path).entries()) == 1 + left


def test_finding_it_in_the_cache_is_a_use(tmp_path: Path, model: Path) -> None:
    artifact = compiled.resolve(model)
    os.utime(artifact, (1, 1))
    assert compiled.resolve(model) == artifact and Artifacts(tmp_path).entries()[0].last_used > 1


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("512", 512),
        ("20G", 20 * 10**9),
        ("20GB", 20 * 10**9),
        ("1.5 tb", 15 * 10**11),
        ("10kB", 10_000),
    ],
)
def test_sizes(text: str, count: int) -> None:
    assert parse_bytes(text) == count
    assert settings({"INGOT_CACHE_LIMIT": text}).cache_limit == count


@pytest.mark.parametrize("text", ["-1", "many", "20GiB", "1e9", "G", "9" * 400])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError, match="INGOT_CACHE_LIMIT is"):
        settings({"INGOT_CACHE_LIMIT": text})


def test_there_is_no_limit_unless_it_is_set() -> None:
    assert settings({}).cache_limit is None
    assert settings({"INGOT_CACHE_LIMIT": ""}).cache_limit is None
