"""The file of a conversation: written whole, read with care."""

from __future__ import annotations

import json

import pytest

from ingot.cli.chat.conversation import Conversation, load, save
from ingot.errors import UsageError


def conversation() -> Conversation:
    talk = Conversation("Be brief.")
    talk.add("Täg?", "Yes.", "Well.")
    return talk


def test_a_file_gives_back_what_was_saved(tmp_path):
    path = tmp_path / "talk.json"
    save(conversation(), path)
    assert load(path) == conversation()
    assert json.loads(path.read_text()) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Täg?"},
        {"role": "assistant", "content": "Yes.", "reasoning_content": "Well."},
    ]
    save(Conversation(), path)  # over another conversation
    assert load(path) == Conversation()
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_but_a_conversation_is_replaced(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("notes")
    with pytest.raises(UsageError, match="there already"):
        save(conversation(), path)
    assert path.read_text() == "notes"


@pytest.mark.parametrize("name", ["none/talk.json", "n" * 300, "\0", "."])
def test_a_place_that_cannot_be_written(tmp_path, name):
    with pytest.raises(UsageError):
        save(conversation(), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("{}", "is no conversation"),
        ('["hi"]', "is no conversation"),
        ('[{"role": "user"}]', "is no conversation"),
        ('[{"role": "user", "content": 1}]', "is no conversation"),
        ('[{"role": "pirate", "content": "hi"}]', "is no conversation"),
        (
            '[{"role": "user", "content": "hi"}, {"role": "system", "content": "x"}]',
            "not the first",
        ),
    ],
)
def test_a_file_that_is_no_conversation(tmp_path, text, found):
    path = tmp_path / "talk.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=found):
        load(path)


def test_a_file_that_is_missing(tmp_path):
    with pytest.raises(UsageError, match="cannot be read: no such file"):
        load(tmp_path / "none.json")
