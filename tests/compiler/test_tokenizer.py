"""Tokenizers that are refused when they are read, before anything is made of the model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.make_model import write_byte_tokenizer
from ingot.compiler import tokenizer_files as reader
from ingot.compiler.golden_text import TEXT
from ingot.compiler.tokenizer import copy_tokenizer, encode, load_tokenizer
from ingot.errors import TokenizerError
from ingot.models.file_names import TOKENIZER_FILES
from ingot.models.model_dir import ModelDir
from tests.support.odd_files import ODD_FILES

VOCAB_SIZE = 320
BEYOND = 99_999


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_byte_tokenizer(tmp_path, VOCAB_SIZE)
    return tmp_path


def change(folder: Path, **values: Any) -> None:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def template(ids: list[int]) -> dict[str, Any]:
    """A post-processor that puts a token before every text."""
    special = {"[X]": {"id": "[X]", "ids": ids, "tokens": ["[X]"]}} if ids else {}
    begin, text = {"SpecialToken": {"id": "[X]", "type_id": 0}}, {"id": "A", "type_id": 0}
    single = [begin, {"Sequence": text}]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": special,
    }


WORDS = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "<unk>"}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "panics when it is read": (
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}},
        "cannot be read",
    ),
    "panics when it encodes": (
        {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
        "cannot encode",
    ),
    "panics when it adds tokens": ({"post_processor": template([])}, "cannot encode"),
    "does not know English": ({"model": WORDS, "pre_tokenizer": None}, "cannot encode"),
    "adds ids beyond the vocabulary": ({"post_processor": template([BEYOND])}, str(BEYOND)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_tokenizer_that_cannot_serve_the_model_is_refused(name: str, model: Path) -> None:
    values, named = REFUSED[name]
    change(model, **values)
    with pytest.raises(TokenizerError, match=named) as caught:
        load_tokenizer(ModelDir.open(model), VOCAB_SIZE)
    assert "tokenizer.json" in caught.value.found
    assert caught.value.hint


def test_tokens_that_a_post_processor_adds_may_be_any_of_the_vocabulary(model: Path) -> None:
    change(model, post_processor=template([VOCAB_SIZE - 1]))
    tokenizer = load_tokenizer(ModelDir.open(model), VOCAB_SIZE)
    assert encode(tokenizer, "a", "it", add_special_tokens=True)[0] == VOCAB_SIZE - 1


def test_what_a_tokenizer_pads_and_cuts_is_not_seen(model: Path) -> None:
    whole = encode(load_tokenizer(ModelDir.open(model), VOCAB_SIZE), TEXT, "it")
    padding = {"direction": "Right", "pad_to_multiple_of": None, "pad_type_id": 0}
    change(
        model,
        truncation={"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 5},
        padding={**padding, "strategy": {"Fixed": 999}, "pad_id": BEYOND, "pad_token": "[PAD]"},
    )
    assert encode(load_tokenizer(ModelDir.open(model), VOCAB_SIZE), TEXT, "it") == whole


@pytest.mark.parametrize("make", ODD_FILES.values(), ids=ODD_FILES)
@pytest.mark.parametrize("name", TOKENIZER_FILES)
def test_what_is_no_file_is_refused_at_once(
    name: str, make: Callable[[Path], object], model: Path
) -> None:
    (model / name).unlink(missing_ok=True)
    make(model / name)
    with pytest.raises(TokenizerError, match=name):
        load_tokenizer(ModelDir.open(model), VOCAB_SIZE)


def test_links_to_files_are_followed_and_copied_as_files(model: Path, tmp_path: Path) -> None:
    """As in the cache of Hugging Face, where every file is a link."""
    (model / "tokenizer.json").rename(model / "blob")
    (model / "tokenizer.json").symlink_to("blob")
    load_tokenizer(ModelDir.open(model), VOCAB_SIZE)
    copy_tokenizer(ModelDir.open(model), tmp_path / "out", VOCAB_SIZE)
    copied = tmp_path / "out" / "tokenizer.json"
    assert not copied.is_symlink()
    assert copied.read_bytes() == (model / "blob").read_bytes()


def test_the_last_id_is_that_of_the_vocabulary(model: Path) -> None:
    """256 bytes and two special tokens: ids 0 to 257."""
    load_tokenizer(ModelDir.open(model), 258)
    with pytest.raises(TokenizerError, match=r"has token id 257, .* ends at 256") as caught:
        load_tokenizer(ModelDir.open(model), 257)
    assert "another model" in caught.value.hint


def test_every_file_is_copied_as_it_is_and_no_other(model: Path, tmp_path: Path) -> None:
    (model / "chat_template.jinja").write_bytes(b"\r\n{{ x }}\xff")
    (model / "vocab.json").write_text("{}")
    copy_tokenizer(ModelDir.open(model), tmp_path / "out", VOCAB_SIZE)
    copied = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    names = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
    assert copied == {name: (model / name).read_bytes() for name in names}


def test_special_tokens_are_added_where_they_are_asked_for(model: Path) -> None:
    change(model, post_processor=template([7]))
    tokenizer = load_tokenizer(ModelDir.open(model), VOCAB_SIZE)
    plain = encode(tokenizer, "ab", "it")
    assert len(plain) == 2 and encode(tokenizer, "ab", "it", add_special_tokens=True) == [7, *plain]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_a_user_who_interrupts_is_no_fault_of_the_tokenizer(kind: type[BaseException]) -> None:
    class Slow:
        model = None  # that takes no longest match

        def encode(self, text: str, add_special_tokens: bool) -> None:
            raise kind

    with pytest.raises(kind):
        encode(Slow(), "a", "it")  # type: ignore[arg-type]


def test_a_file_that_is_too_large_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = (model / "tokenizer.json").stat().st_size
    monkeypatch.setattr(reader, "MAX_BYTES", size)
    load_tokenizer(ModelDir.open(model), VOCAB_SIZE)
    monkeypatch.setattr(reader, "MAX_BYTES", size - 1)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json cannot be read: "):
        load_tokenizer(ModelDir.open(model), VOCAB_SIZE)
