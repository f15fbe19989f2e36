"""`ingot pull`, `list`, `rm` and `cache`, on a hub of this machine and caches of the test."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from ingot import hub_cache
from ingot.artifact.reader import Artifact
from ingot.cache_entries import entries, entry_name
from ingot.cli.main import main
from tests.cli.sample_artifact import write_sample
from tests.support.build_once import built_once
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
    with built_once():
        run = ("run", NAME, "hello", "--max-tokens", "2", "--json")
        first = json.loads(said(capsys, *run))
        assert json.loads(said(capsys, *run)) == first
    assert len(hub.requests) == asked
    (entry,) = entries(folder)
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


def test_an_artifact_is_removed_by_its_id_or_all_by_their_model(hub, kept, capsys) -> None:
    said(capsys, "rm", "11111111")
    assert [path.exists() for path in kept] == [True, False, True]
    said(capsys, "rm", "owner/a-model-with-a-rather-long-name", "--json")
    assert [path.exists() for path in kept] == [False, False, True]
    assert main(["rm", "three"]) == 2
    assert "no model and no artifact is called three" in capsys.readouterr().err


def test_a_download_in_part_is_listed_and_removed(hub, folder, capsys) -> None:
    repository = hub_cache.repository(NAME)
    (repository / "snapshots" / ("0" * 40)).mkdir(parents=True)
    (repository / "blobs").mkdir()
    (repository / "blobs" / f"aa{hub_cache.PARTIAL}").write_bytes(bytes(5000))
    assert f"{NAME} (in part)  5.00 KB" in said(capsys, "list")
    assert f"removed the model {NAME}, 5.00 KB" in said(capsys, "rm", NAME)
    assert not repository.exists()


def test_what_is_open_is_not_removed(hub, kept, capsys) -> None:
    artifact = Artifact.open(kept[2])
    assert main(["rm", "two"]) == 2
    assert "the artifact 22222222 of two is open" in capsys.readouterr().err
    assert artifact.path.exists() and not kept[1].exists()
    assert main(["rm", "two", "--json"]) == 2
    assert json.loads(capsys.readouterr().out) == {"removed": [], "left": ["22222222"]}


def test_the_cache_is_shown_limited_and_cleaned(kept, folder, monkeypatch, capsys) -> None:
    assert "artifacts  3, " in said(capsys, "cache") and kept[0].exists()
    nbytes = entries(folder)[0].nbytes
    out = said(capsys, "cache", "--limit", f"{nbytes}")
    assert "artifacts  1, " in out and "removed    2, " in out and kept[2].exists()
    monkeypatch.setenv("INGOT_CACHE_LIMIT", "20GB")
    (folder / "kernels").mkdir()
    found = json.loads(said(capsys, "cache", "--clean", "--json"))
    assert not (folder / "kernels").exists()
    assert (found["artifacts"], found["limit"], len(found["removed"])) == (0, 20 * 10**9, 1)


@pytest.mark.parametrize("options", [["--limit", "much"], ["--limit", "1G", "--clean"]])
def test_a_limit_that_is_none(folder, options, capsys) -> None:
    assert main(["cache", *options]) == 2
    assert "--limit" in capsys.readouterr().err
