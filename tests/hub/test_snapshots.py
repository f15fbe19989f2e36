"""The hub's cache as it lies on the disk: what is whole, what is listed, and what is asked for."""

from __future__ import annotations

import errno
import os
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import constants, errors

from ingot.compiler import torch_import
from ingot.errors import (
    CheckpointError,
    GatedModelError,
    HubUnreachableError,
    ModelNotFoundError,
    ResourceError,
    UsageError,
)
from ingot.hub import names
from ingot.hub.download import megabytes
from ingot.hub.snapshots import (
    PARTIAL,
    cached,
    is_whole,
    models,
    remove_model,
    repository,
    size_here,
)

FILES = ("config.json", "tokenizer.json", "model.safetensors")
OLD, NEW = "a" * 40, "b" * 40


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    return folder


def keep(name: str, commit: str = OLD, size: int = 10, used: int = 0, files=FILES) -> Path:
    """Lays files of that size into the cache as the hub's client does; returns their folder."""
    folder = repository(name)
    snapshot = folder / "snapshots" / commit
    for each in files:
        blob = folder / "blobs" / f"{commit[0]}-{each}"
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(bytes(size))
        os.utime(blob, (used, 1))
        snapshot.mkdir(parents=True, exist_ok=True)
        (snapshot / each).symlink_to(os.path.relpath(blob, snapshot))
    return snapshot


def name_revision(name: str, revision: str, commit: str) -> None:
    ref = repository(name) / "refs" / revision
    ref.parent.mkdir(parents=True, exist_ok=True)
    ref.write_text(f"{commit}\n")  # some programs end it with a line break


@pytest.mark.parametrize("absent", FILES)
def test_a_model_is_whole_with_all_its_files(absent: str) -> None:
    folder = keep("o/m")
    assert is_whole(folder)
    (folder / absent).unlink()
    assert not is_whole(folder)


def test_a_shard_that_is_absent_is_missed() -> None:
    folder = keep("o/m", files=("config.json", "tokenizer.json", "a.safetensors"))
    shards = '{"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}'
    (folder / "model.safetensors.index.json").write_text(shards)
    assert not is_whole(folder)
    (folder / "b.safetensors").write_text("")
    assert is_whole(folder)


@pytest.mark.parametrize("index", ["", "{", "[]", "{}", '{"weight_map": {}}', '{"weight_map": 1}'])
def test_an_index_that_cannot_be_read_makes_nothing_whole(index: str) -> None:
    folder = keep("o/m", files=("config.json", "tokenizer.json"))
    (folder / "model.safetensors.index.json").write_text(index)
    assert not is_whole(folder)
    keep("o/Good")
    assert [model.name for model in models()] == ["o/Good"]


def test_what_has_gone_meanwhile_has_no_size(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(5))
    assert [size_here(tmp_path / name) for name in ("x", "gone")] == [5, 0]


def test_a_revision_is_a_name_or_a_commit(cache: Path) -> None:
    assert repository("o/m") == cache / "models--o--m"
    old, new = keep("o/m"), keep("o/m", NEW)
    assert cached("o/m") is None
    name_revision("o/m", "main", OLD)
    name_revision("o/m", "refs/pr/1", NEW)
    assert cached("o/m") == cached("o/m", "main") == cached("o/m", OLD) == old
    assert cached("o/m", "refs/pr/1") == cached("o/m", NEW) == new
    assert cached("o/m", "v2") is None and cached("o/other") is None
    (new / "config.json").unlink()
    assert cached("o/m", NEW) is None and cached("o/m") == old


def test_a_revision_that_is_here_is_what_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """By every way in; what is not here is asked for under its name."""
    old, new = keep("o/m"), keep("o/m", NEW)
    name_revision("o/m", "main", OLD)
    name_revision("o/m", "v2", NEW)
    asked: list[tuple[str, str | None]] = []
    monkeypatch.setattr(torch_import, "check_torch", lambda: asked.append(("torch", None)))
    monkeypatch.setattr(names, "pull", lambda *what: asked.append(what) or Path("pulled"))
    for revision, folder in ((None, old), ("main", old), ("v2", new), (NEW, new)):
        assert names.model_path("o/m", revision) == folder
        with names.model_outline("o/m", revision) as outline:
            assert outline == folder
    assert asked == []
    assert names.model_path("o/m", "v3") == Path("pulled")
    assert asked == [("torch", None), ("o/m", "v3")]  # nothing comes that cannot be compiled
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(
        "ingot.hub.download.outline", lambda *what: asked.append(what) or nullcontext(Path("out"))
    )
    with names.model_outline("o/m", "v4") as outline:
        assert outline == Path("out") and asked[2:] == [("o/m", "v4")]


def test_models_are_listed_with_what_is_known_of_them(cache: Path) -> None:
    """The last used first; those of other programs are left out."""
    assert models() == []
    keep("o/old", "c" * 40, used=1000)
    keep("o/both", size=20, used=3000)
    keep("o/both", NEW, size=30, used=2000)
    (repository("o/both") / "blobs" / f"x{PARTIAL}").write_bytes(bytes(7))
    keep("o/partial", "d" * 40, used=2500, files=("config.json",))
    (repository("o/partial") / "blobs" / f"y{PARTIAL}").write_bytes(bytes(5000))
    keep("o/other", "e" * 40, used=9000, files=("config.json",))
    for kind in ("datasets", "spaces"):
        keep("o/data", "f" * 40, used=9000)
        (cache / "models--o--data").rename(cache / f"{kind}--o--data")
    listed = [(m.name, m.whole, m.nbytes, m.last_used) for m in models()]
    assert listed == [
        ("o/both", True, 3 * 20 + 3 * 30 + 7, 3000),
        ("o/partial", False, 5010, 2500),
        ("o/old", True, 30, 1000),
    ]
    both = models()[0]
    assert both.commits == (OLD, NEW)
    remove_model(both)
    assert not repository("o/both").exists() and repository("o/old").exists()


@pytest.mark.parametrize("partial", [0, 7])
@pytest.mark.parametrize("states", list(product([True, False], repeat=3)))
def test_one_whole_revision_makes_a_model_whole(states: tuple[bool, ...], partial: int) -> None:
    """Whichever it is, and whatever lies there in part. Where none is, a model was begun with."""
    for commit, whole in zip("abc", states, strict=True):
        keep("o/m", commit * 40, files=FILES if whole else FILES[:2])
    if partial:
        (repository("o/m") / "blobs" / f"x{PARTIAL}").write_bytes(bytes(partial))
    found = [(model.whole, len(model.commits), model.nbytes) for model in models()]
    nbytes = 10 * (6 + sum(states)) + partial
    assert found == ([(any(states), 3, nbytes)] if any(states) or partial else [])


def test_a_model_is_removed_alone(cache: Path) -> None:
    """Even where others have its commits: one that was renamed on the hub, or a set of data."""
    names = ("a/m", "o/m", "o/n", "z/m")
    for kind, name in product(("datasets", "spaces", "models"), names):
        keep(name)
        keep(name, NEW)
        folder = repository(name)
        folder.rename(folder.with_name(folder.name.replace("models", kind, 1)))
    for gone in names:
        left = {path for path in cache.rglob("*") if repository(gone) not in (path, *path.parents)}
        remove_model(next(model for model in models() if model.name == gone))
        assert {path for path in cache.rglob("*") if ".locks" not in path.parts} == left


@pytest.mark.parametrize(
    ("model", "is_name"),
    [
        ("o/m", True), ("0/1", True), ("o-.x/m_.-y", True), ("o/m.ingot", False),
        ("-o/m", False), ("o/.m", False), ("o//m", False), ("o/m/", False), ("ö/m", False),
        (" o/m", False), ("o/m\n", False),
    ],
)  # fmt: skip
def test_what_can_be_a_name(model: str, is_name: bool) -> None:
    assert names.hub_name(model) == (model if is_name else "")
    if not is_name and not model.endswith(".ingot"):
        with pytest.raises(UsageError, match="is no name on the hub"):
            names.pull(model)


def test_a_link_that_leads_nowhere_is_still_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("o").mkdir()
    Path("o/m").symlink_to("nowhere")
    assert names.hub_name("o/m") == ""


def answered(kind: str, status: int) -> Exception:
    """What the hub's client raises for an answer of that status."""
    response = SimpleNamespace(headers={}, status_code=status, request=None)
    return getattr(errors, kind)("no", response=response)


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (OSError(errno.ENOSPC, "full"), ResourceError, "o/m: no space is left on the disk of"),
        (OSError(errno.EDQUOT, "full"), ResourceError, "o/m: no space is left on the disk of"),
        (OSError(errno.EACCES, "denied"), PermissionError, "denied"),
        (OSError("broken"), HubUnreachableError, "cannot be reached: .*broken"),
        (MemoryError("x"), MemoryError, "x"),
        (ModuleNotFoundError("x"), ModuleNotFoundError, "x"),
        (UsageError("ours"), UsageError, "ours"),
        (errors.HFValidationError("x"), ModelNotFoundError, "no folder o/m here"),
        (errors.SafetensorsParsingError("x"), CheckpointError, "o/m has damaged weights: x"),
        (ValueError("x"), HubUnreachableError, "cannot be reached: .*x"),
        # So the client fails where something else than the hub answers.
        (KeyError("id"), HubUnreachableError, "cannot be reached: .*id"),
        (answered("GatedRepoError", 403), GatedModelError, "o/m is gated"),
        (answered("RevisionNotFoundError", 404), ModelNotFoundError, "o/m has no revision main"),
        (answered("RepositoryNotFoundError", 404), ModelNotFoundError, "no folder o/m here"),
        (answered("HfHubHTTPError", 401), GatedModelError, "status 401"),
        (answered("HfHubHTTPError", 403), GatedModelError, "status 403"),
        (answered("HfHubHTTPError", 404), HubUnreachableError, "answered with status 404"),
        (answered("HfHubHTTPError", 503), HubUnreachableError, "answered with status 503"),
    ],
    ids=repr,
)
def test_what_goes_wrong_has_its_own_error(
    error: Exception, kind: type[Exception], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with pytest.raises(kind, match=said) as caught, names.asking_for("o/m", None):
        raise error
    assert caught.value is error or caught.value.__cause__ is error


def test_sizes_are_in_powers_of_1000() -> None:
    assert [megabytes(n) for n in (0, 149_999, 1_250_000_000)] == ["0.0 MB", "0.1 MB", "1,250.0 MB"]
