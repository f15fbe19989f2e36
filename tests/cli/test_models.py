"""`ingot pull`, `list`, `rm` and `cache`, on a hub of this machine and caches of the test."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from ingot.artifact.reader import Artifact
from ingot.cache.artifacts import Artifacts, entry_name
from ingot.cli.main import main
from ingot.cli.numbers import format_bytes
from ingot.hub import snapshots
from tests.cli.sample_artifact import write_sample
from tests.support.hub import Hub

NAME = "Tiny/llama"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of compiled models."""
    path = tmp_path / "cache"
    monkeypatch.setenv("INGOT_CACHE", str(path))
    return path


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.support.tiny_models import save_random

    return save_random("llama", tmp_path_factory.mktemp("tiny") / "llama", tokenizer=True)


def said(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> str:
    """What a command writes to stdout."""
    capsys.readouterr()
    assert main(argv) == code
    return capsys.readouterr().out


@pytest.mark.thorough
def test_a_name_is_explained_pulled_run_listed_and_removed(
    hub: Hub, tiny: Path, folder: Path, capsys
) -> None:
    hub.add(NAME, tiny)
    out = said(capsys, "explain", NAME, "--revision", "main")
    assert out.endswith(f"ingot compile {NAME} --revision main\n")
    out = said(capsys, "explain", NAME)
    assert out.startswith(f"{NAME}: supported\n") and out.endswith(f"ingot compile {NAME}\n")
    assert "models in" in said(capsys, "list")
    assert "none" in said(capsys, "list")  # an outline is no model
    found = json.loads(said(capsys, "pull", NAME, "--json"))
    assert (found["name"], found["commit"]) == (NAME, hub.repos[NAME].commit)
    asked = len(hub.requests)
    run = ("run", NAME, "hello", "--max-tokens", "2", "--json")
    first = json.loads(said(capsys, *run))
    assert json.loads(said(capsys, *run)) == first
    assert len(hub.requests) == asked
    (entry,) = Artifacts(folder).entries()
    assert Artifact.open(entry.path).manifest.model.name == NAME
    listed = json.loads(said(capsys, "list", "--json"))
    assert [model["name"] for model in listed["models"]] == [NAME]
    assert [artifact["id"] for artifact in listed["artifacts"]] == [entry.id]
    assert entry.model == NAME
    out = said(capsys, "rm", NAME)
    assert f"removed the model {NAME}" in out and f"removed the artifact {entry.id}" in out
    assert said(capsys, "list").count("none") == 2


def test_pull_says_how_to_go_on(hub: Hub, tiny: Path, folder: Path, capsys) -> None:
    hub.add(NAME, tiny)
    out = said(capsys, "pull", NAME, "--revision", "main")
    assert hub.repos[NAME].commit in out
    assert out.endswith(f'ingot run {NAME} --revision main "Once upon a time"\n')


@pytest.mark.parametrize(
    ("options", "asked"), [((), None), (("--revision", "v1"), "v1"), (("--revision", "a/b"), "a/b")]
)
def test_pull_tells_what_is_there_now(
    folder, tmp_path, options, asked, monkeypatch, capsys
) -> None:
    """Files of the cache are links to where their content lies."""
    snapshot, seen = tmp_path / ("c" * 40), []
    (snapshot / "sub").mkdir(parents=True)
    (tmp_path / "blob").write_bytes(bytes(12_345))
    (snapshot / "model.safetensors").symlink_to(tmp_path / "blob")
    (snapshot / "config.json").write_bytes(b"{}")
    monkeypatch.setattr("ingot.hub.names.pull", lambda *name: seen.append(name) or snapshot)
    found = json.loads(said(capsys, "pull", NAME, *options, "--json"))
    assert found == {
        "name": NAME, "commit": "c" * 40, "path": str(snapshot), "nbytes": 12_347,
    }  # fmt: skip
    rows = dict(
        line.split(maxsplit=1) for line in said(capsys, "pull", NAME, *options).split("\n")[1:4]
    )
    assert rows == {"size": "12.3 KB", "commit": "c" * 40, "folder": str(snapshot)}
    assert seen == [(NAME, asked)] * 2


def test_errors_of_the_hub_are_usage_errors(hub: Hub, folder: Path, capsys) -> None:
    for argv in (["pull", "No/such"], ["run", "No/such", "x"], ["explain", "No/such"]):
        assert main(argv) == 2
        assert "error: there is no folder No/such here" in capsys.readouterr().err
    assert main(["pull", "such"]) == 2
    assert "'such' is no name on the hub" in capsys.readouterr().err


@pytest.fixture
def kept(folder: Path) -> list[Path]:
    names = (("owner/a-model-with-a-rather-long-name", "0"), ("two", "1"), ("two", "2"))
    paths = [write_sample(folder / entry_name(model, key * 64)) for model, key in names]
    for index, path in enumerate(paths):
        os.utime(path, (index, index))
    return paths


@pytest.mark.parametrize("columns", [40, 80])
def test_the_list_fits_the_terminal(hub, kept, columns, monkeypatch, capsys) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    out = said(capsys, "list")
    for model in ("owner/a-model-with-a-rather-long-name", "00000000", "two", "days ago"):
        assert model in out
    rows = [line for line in out.splitlines() if not re.match("models|artifacts", line)]
    assert max(map(len, rows)) <= columns


def test_the_list_is_a_table_as_long_as_it_fits(hub, kept, monkeypatch, capsys) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    wide = said(capsys, "list")
    columns = max(len(line) for line in wide.split("artifacts in")[1].splitlines()[1:])
    for width, same in ((columns, True), (columns - 1, False)):
        monkeypatch.setenv("COLUMNS", str(width))
        assert (said(capsys, "list") == wide) == same


def test_the_list_tells_when_each_was_used(hub, folder, monkeypatch, capsys) -> None:
    """The last used first, in text as in JSON."""
    now = 1_700_000_000
    monkeypatch.setattr("ingot.cli.listing.time.time", lambda: now)
    ages = {"day": 86400, "hour": 3600, "now": 0}
    models = [
        snapshots.HubModel(f"a/{age}", age != "hour", 1000, now - seconds, ("c" * 40,))
        for age, seconds in ages.items()
    ]
    monkeypatch.setattr(snapshots, "models", lambda: models)
    for key, (age, seconds) in enumerate(ages.items()):
        path = write_sample(folder / entry_name(age, f"{key}" * 64))
        os.utime(path, (0, now - seconds))
    size = Artifacts(folder).entries()[0].nbytes
    lines = [re.split("  +", line.strip()) for line in said(capsys, "list").splitlines()]
    split = lines.index([""])
    assert lines[2:split] == [
        ["a/day", "1.00 KB", "1 day ago"],
        ["a/hour (in part)", "1.00 KB", "1 h ago"],
        ["a/now", "1.00 KB", "now"],
    ]
    assert lines[split + 3 :] == [
        ["now", "22222222", format_bytes(size), "now"],
        ["hour", "11111111", format_bytes(size), "1 h ago"],
        ["day", "00000000", format_bytes(size), "1 day ago"],
    ]
    found = json.loads(said(capsys, "list", "--json"))
    assert [(m["name"], m["whole"], m["last_used"]) for m in found["models"]] == [
        (model.name, model.whole, model.last_used) for model in models
    ]
    shown = [(e["model"], e["id"], e["nbytes"], e["last_used"]) for e in found["artifacts"]]
    assert shown == [(e.model, e.id, e.nbytes, e.last_used) for e in Artifacts(folder).entries()]


def test_an_artifact_is_removed_by_its_id_or_all_by_their_model(hub, kept, capsys) -> None:
    said(capsys, "rm", "11111111")
    assert [path.exists() for path in kept] == [True, False, True]
    said(capsys, "rm", "owner/a-model-with-a-rather-long-name", "--json")
    assert [path.exists() for path in kept] == [False, False, True]
    assert main(["rm", "three"]) == 2
    assert "no model and no artifact is called three" in capsys.readouterr().err


def test_a_download_in_part_is_listed_and_removed(hub, folder, capsys) -> None:
    repository = snapshots.repository(NAME)
    (repository / "snapshots" / ("0" * 40)).mkdir(parents=True)
    (repository / "blobs").mkdir()
    (repository / "blobs" / f"aa{snapshots.PARTIAL}").write_bytes(bytes(5000))
    assert f"{NAME} (in part)  5.00 KB" in said(capsys, "list")
    assert f"removed the model {NAME}, 5.00 KB" in said(capsys, "rm", NAME)
    assert not repository.exists()


def lay_model(name: str, size: int) -> Path:
    """A whole model in the hub's cache, with two revisions of as many bytes in each file."""
    repository = snapshots.repository(name)
    (repository / "blobs").mkdir(parents=True)
    for commit in ("a" * 40, "b" * 40):
        snapshot = repository / "snapshots" / commit
        snapshot.mkdir(parents=True)
        for file in ("config.json", "tokenizer.json", "model.safetensors"):
            blob = repository / "blobs" / f"{commit[0]}-{file}"
            blob.write_bytes(bytes(size))
            (snapshot / file).symlink_to(os.path.relpath(blob, snapshot))
    return repository


def test_a_model_goes_with_its_own_artifacts_and_nothing_else(hub, kept, folder, capsys) -> None:
    """One that is open stays, and stops nothing else from going."""
    others = [write_sample(folder / entry_name(m, "3" * 64)) for m in ("o/two", "two-more", "tw")]
    own = [write_sample(folder / entry_name("a/two", key * 64)) for key in "456"]
    model, near = lay_model("a/two", 10), lay_model("a/two-more", 10)
    lay_model("b/two", 10)
    artifact = Artifact.open(own[1])
    before, size = tree(snapshots.cache_dir()), Artifacts(folder).entries()[0].nbytes
    found = json.loads(said(capsys, "rm", "a/two", "--json", code=2))
    removed = [(one["kind"], one["name"], one["nbytes"]) for one in found.pop("removed")]
    assert removed[0] == ("model", "a/two", 60) and found == {"left": ["55555555"]}
    assert sorted(removed[1:]) == [("artifact", "44444444", size), ("artifact", "66666666", size)]
    assert {path.name for path in folder.iterdir()} == {p.name for p in (*kept, *others, own[1])}
    after = {name: data for name, data in before.items() if name.split("/")[0] != model.name}
    assert tree(snapshots.cache_dir()) == after and near.name in after
    del artifact


@pytest.mark.parametrize("name", ["", "1111111", "111111111", "1" * 16, "tw", "a/two", "TWO"])
def test_a_part_of_a_name_removes_nothing(hub, kept, folder, name, capsys) -> None:
    before = tree(folder)
    assert main(["rm", name]) == 2
    assert f"no model and no artifact is called {name}" in capsys.readouterr().err
    assert tree(folder) == before


def test_what_is_open_is_not_removed(hub, kept, capsys) -> None:
    artifact = Artifact.open(kept[2])
    assert main(["rm", "two"]) == 2
    assert "the artifact 22222222 of two is open" in capsys.readouterr().err
    assert artifact.path.exists() and not kept[1].exists()
    assert main(["rm", "two", "--json"]) == 2
    assert json.loads(capsys.readouterr().out) == {"removed": [], "left": ["22222222"]}


def test_the_cache_is_shown_limited_and_cleaned(kept, folder, monkeypatch, capsys) -> None:
    assert "artifacts  3, " in said(capsys, "cache") and kept[0].exists()
    nbytes = Artifacts(folder).entries()[0].nbytes
    out = said(capsys, "cache", "--limit", f"{nbytes}")
    assert "artifacts  1, " in out and "removed    2, " in out and kept[2].exists()
    monkeypatch.setenv("INGOT_CACHE_LIMIT", "20GB")
    (folder / "kernels").mkdir()
    found = json.loads(said(capsys, "cache", "--clean", "--json"))
    assert not (folder / "kernels").exists()
    assert (found["artifacts"], found["limit"], len(found["removed"])) == (0, 20 * 10**9, 1)


def tree(root: Path) -> dict[str, bytes | None]:
    """All that lies below a folder, with the content of files."""
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in root.rglob("*")
    }


@pytest.mark.cases(core=6)
@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(
    ("always", "limit", "shown"), [("", None, "none"), ("0", 0, "0 B"), ("1G", 10**9, "1.00 GB")]
)
@pytest.mark.parametrize(
    ("option", "left"), [(None, 3), (0, 0), (1, 1), (2, 2), (3, 3), ("--clean", 0)]
)
def test_the_cache_loses_what_is_asked_for_and_tells_it(
    kept, folder, option, left, always, limit, shown, as_json, monkeypatch, capsys
) -> None:
    """The limit of compiles removes nothing here, and a limit of zero is one."""
    monkeypatch.setenv("INGOT_CACHE_LIMIT", always)
    (folder / "kernels").mkdir()
    (folder / "kernels" / f"{'0' * 64}-{'1' * 16}.o").write_bytes(b"code")
    (folder / "notes.txt").write_text("of somebody else")
    before, size = tree(folder), Artifacts(folder).entries()[0].nbytes
    argv = [] if option is None else ["--limit", f"{option * size}"]
    argv = ["--clean"] if option == "--clean" else argv
    stay = {"notes.txt", *(path.name for path in kept[3 - left :])}
    stay |= set() if option == "--clean" else {"kernels"}
    out = said(capsys, "cache", *argv, *(["--json"] if as_json else []))
    assert tree(folder) == {n: data for n, data in before.items() if n.split("/")[0] in stay}
    if as_json:
        found = json.loads(out)
        removed = [(entry["path"], entry["nbytes"]) for entry in found.pop("removed")]
        assert removed == [(str(path), size) for path in kept[: 3 - left]]
        shows = {"path": str(folder), "artifacts": left, "nbytes": left * size, "limit": limit}
        assert found == shows
        return
    rows = [["artifacts", f"{left}, {format_bytes(left * size)}"], ["limit", shown]]
    if argv:
        rows.append(["removed", f"{3 - left}, {format_bytes((3 - left) * size)}"])
    lines = out.splitlines()
    assert lines[0] == str(folder)
    assert [line.split(maxsplit=1) for line in lines[1:]] == rows


@pytest.mark.parametrize("options", [[], ["--limit", "0"], ["--clean"]])
def test_a_cache_that_was_never_used_is_empty(folder, options, capsys) -> None:
    assert "artifacts  0, 0 B" in said(capsys, "cache", *options)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--limit", "much"], "'much' is no size"),
        (["--limit", ""], "'' is no size"),
        (["--limit", "1G", "--clean"], "--limit and --clean are both given"),
        (["--limit", "0", "--clean"], "--limit and --clean are both given"),
    ],
)
def test_a_limit_that_is_none(kept, folder, options, reason, capsys) -> None:
    before = tree(folder)
    assert main(["cache", *options]) == 2
    assert reason in capsys.readouterr().err and tree(folder) == before
