"""A model directory as a value: its files, its JSON, what it is called, and what it lacks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ingot.errors import CheckpointError, ConfigError, ModelDirError, TokenizerError
from ingot.models import model_dir
from ingot.models.json_object import parse_json_object
from ingot.models.model_dir import ModelDir


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("models/tiny", "tiny"),
        ("hub/models--owner--tiny/snapshots/abc", "owner/tiny"),
        ("hub/models--owner--a--b--c/snapshots/abc", "owner/a--b--c"),
        ("hub/models--gpt2/snapshots/abc", "gpt2"),
        ("hub/models--owner--tiny/refs/abc", "abc"),
        ("hub/datasets--owner--tiny/snapshots/abc", "abc"),
        ("mine/snapshots/abc", "abc"),
        ("owner--tiny", "owner--tiny"),
    ],
)
def test_what_a_model_is_called(
    folder: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / folder
    place.mkdir(parents=True)
    assert ModelDir.open(place).name == name
    link = tmp_path / "link"
    link.symlink_to(place)
    assert ModelDir.open(link).name == name
    monkeypatch.chdir(place)
    assert ModelDir.open(Path()).name == name


def test_a_tokenizer_may_be_a_link_of_any_kind(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=f"^{tmp_path} has no tokenizer.json") as caught:
        ModelDir.open(tmp_path).check_tokenizer()
    assert "save_pretrained" in caught.value.hint
    (tmp_path / "tokenizer.json").symlink_to("gone")  # which reading it says
    ModelDir.open(tmp_path).check_tokenizer()


def test_another_format_is_one_only_without_a_config(tmp_path: Path) -> None:
    ModelDir.open(tmp_path)
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(CheckpointError, match="pickles"):
        ModelDir.open(tmp_path)
    (tmp_path / "config.json").symlink_to("gone")
    ModelDir.open(tmp_path)


@pytest.mark.parametrize("name", ["gone", "file", "file/below", "a\0b"])
def test_what_is_no_directory(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelDirError) as caught:
        ModelDir.open(tmp_path / name)
    assert not isinstance(caught.value, CheckpointError)
    assert "give a directory with config.json" in caught.value.hint


def test_files_are_read_up_to_their_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert model_dir.MAX_JSON_BYTES == 64 * 1024 * 1024
    monkeypatch.setattr(model_dir, "MAX_JSON_BYTES", 10)
    path = tmp_path / "x.json"
    path.write_bytes(b'{"a":1234}')
    found = ModelDir.open(tmp_path)
    assert found.json_bytes("x.json") == b'{"a":1234}' and found.json("x.json") == {"a": 1234}
    path.write_bytes(b'{"a":12345}')
    with pytest.raises(ModelDirError, match=f"^{path} cannot be read: larger than 10"):
        ModelDir.open(tmp_path).json("x.json")
    path.unlink()
    with pytest.raises(ModelDirError, match=f"^{tmp_path} has no x.json"):
        ModelDir.open(tmp_path).json("x.json")


def test_any_object_is_read_as_it_is() -> None:
    value = {"a": [1, 2.5, None, {"b": True}], "é": "\u2028", "": {}, "c": {"a": 10**400}}
    assert parse_json_object(json.dumps(value).encode(), "x") == value
    assert parse_json_object(json.dumps(value, ensure_ascii=False).encode(), "x") == value


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b'{"a": {"b": 1, "b": 1}}', "x is not JSON: the key b stands twice"),
        (b'{"a": [{"b": 1, "b": 2}]}', "the key b stands twice"),
        (b'{"a": Infinity}', "Infinity is not a JSON number"),
        (b'{"a": [-Infinity]}', "-Infinity is not a JSON number"),
        (b"null", "x holds NoneType, not an object"),
        (b'"{}"', "x holds str, not an object"),
        (b'{"a": "\xff"}', "x is not JSON"),
        (b"{} {}", "x is not JSON"),
    ],
)
def test_what_is_no_object_is_refused(text: bytes, found: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_json_object(text, "x")
    assert caught.value.found.startswith("x ") and found in caught.value.found
