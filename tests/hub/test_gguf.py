"""GGUF files of the hub: which one a name means, downloaded alone, explained by its header."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import constants

from ingot.compiler.explain import explain
from ingot.errors import (
    CheckpointError,
    HubUnreachableError,
    ModelNotFoundError,
    UnsupportedModelError,
)
from ingot.hub.gguf import chosen_files
from ingot.hub.names import hub_name, model_outline, model_path, pull
from ingot.hub.snapshots import cached, model_size, models
from tests.conftest import SHAKESPEARE
from tests.support.gguf_files import Type, write_gguf
from tests.support.hub import Hub, Repo

NAME = "Tiny/qwen3-GGUF"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("gguf")
    return write_gguf(SHAKESPEARE, folder / "m.gguf", Type.Q8_0).read_bytes()


@pytest.fixture
def repo(hub: Hub, file: bytes) -> Repo:
    files = {"q3-Q8_0.gguf": file, "q3-Q4_K_M.gguf": file[:-1] + b"\1", "README.md": b"text"}
    hub.repos[NAME] = Repo({**files, "mmproj-q3.gguf": b"images", "config.json": b"{}"})
    return hub.repos[NAME]


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (f"{NAME}:Q8_0", f"{NAME}:Q8_0"),
        (f"{NAME}:q3-Q8_0.gguf", f"{NAME}:q3-Q8_0.gguf"),
        (f"{NAME}:", ""),
        (f"{NAME}:a b", ""),
        (f"./{NAME}:Q8_0", ""),
    ],
)
def test_a_name_may_say_which_file(model: str, name: str) -> None:
    assert hub_name(model) == name


PARTS = [f"big/m-Q6_K-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
FILES = ["m-Q4_K_M.gguf", "m-Q4_K.gguf", "m.q8_0.gguf", "mmproj-F16.gguf", *PARTS, "README.md"]


@pytest.mark.parametrize(
    ("kind", "files"),
    [
        ("Q4_K_M", ["m-Q4_K_M.gguf"]),
        ("Q4_K", ["m-Q4_K.gguf"]),
        ("Q8_0", ["m.q8_0.gguf"]),
        ("q6_k", PARTS),
        ("m-Q4_K.gguf", ["m-Q4_K.gguf"]),
    ],
)
def test_the_file_that_is_meant(kind: str, files: list[str]) -> None:
    assert chosen_files("a/b", kind, FILES) == files


@pytest.mark.parametrize("kind", ["", "Q5_0", "F16", "4_K_M", "m"])
def test_what_is_not_there_or_not_one_lists_what_there_is(kind: str) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        chosen_files("a/b", kind, FILES)
    for name in ("m-Q4_K_M.gguf", "m.q8_0.gguf", PARTS[0], "a/b:Q8_0"):
        assert name in caught.value.hint
    assert "mmproj" not in caught.value.hint and PARTS[1] not in caught.value.hint
    assert chosen_files("a/b", "", ["README.md"]) == []


def test_only_the_file_that_is_meant_is_downloaded(hub: Hub, repo: Repo, file: bytes) -> None:
    path = model_path(f"{NAME}:Q8_0")
    assert path.name == "q3-Q8_0.gguf" and path.read_bytes() == file
    assert [p.name for p in path.parent.iterdir()] == ["q3-Q8_0.gguf"]
    assert model_size(path) == len(file)
    before = len(hub.requests)
    assert model_path(f"{NAME}:q8_0") == path == cached(f"{NAME}:Q8_0")
    assert len(hub.requests) == before, "what lies there is used without asking"
    assert cached(f"{NAME}:Q4_K_M") is None
    assert [(model.name, model.whole) for model in models()] == [(NAME, True)]


@pytest.mark.thorough
def test_one_file_needs_no_name(hub: Hub, repo: Repo) -> None:
    with pytest.raises(ModelNotFoundError, match="has 2 GGUF models"):
        model_path(NAME)
    del repo.files["q3-Q4_K_M.gguf"]
    assert model_path(NAME).name == "q3-Q8_0.gguf"


@pytest.mark.thorough
def test_an_outline_explains_as_the_file_does(hub: Hub, repo: Repo) -> None:
    with model_outline(f"{NAME}:Q8_0") as outline:
        told = explain(outline)
    assert cached(f"{NAME}:Q8_0") is None
    assert told == explain(pull(f"{NAME}:Q8_0")) and told.supported


def test_an_unknown_architecture_is_refused_before_the_file_comes(hub: Hub, repo: Repo) -> None:
    repo.files["q3-Q8_0.gguf"] = repo.files["q3-Q8_0.gguf"].replace(b"qwen3", b"moon3")
    with pytest.raises(UnsupportedModelError, match="moon3"):
        pull(f"{NAME}:Q8_0")
    assert all(asked for asked in hub.sent("q3-Q8_0.gguf")), "only its beginning"


def test_a_damaged_header_is_told_before_the_file_comes(hub: Hub, repo: Repo) -> None:
    repo.files["q3-Q8_0.gguf"] = b"GGUF" + bytes(1000)
    with pytest.raises(CheckpointError, match=r"Tiny/qwen3-GGUF/q3-Q8_0.gguf .* version 0"):
        pull(f"{NAME}:Q8_0")


@pytest.mark.thorough
def test_a_file_that_is_none_leaves_nothing(hub: Hub) -> None:
    hub.repos[NAME] = Repo({"m.gguf": b"{}"})
    with pytest.raises(CheckpointError, match=r"Tiny/qwen3-GGUF/m.gguf is 2 bytes long"):
        pull(NAME)
    assert not Path(constants.HF_HUB_CACHE).exists()


@pytest.mark.thorough
def test_a_hub_that_fails_on_the_header_is_told_as_such(hub: Hub, repo: Repo, monkeypatch) -> None:
    monkeypatch.setattr("ingot.hub.gguf._beginning", lambda *_: 1 / 0)
    with pytest.raises(HubUnreachableError, match="ZeroDivisionError"):
        pull(f"{NAME}:Q8_0")
    assert not list(Path(constants.HF_HUB_CACHE).glob("*/blobs/*"))
