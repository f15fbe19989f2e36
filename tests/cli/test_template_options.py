"""`--chat-template`: what is read from files, and templates that would not end."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from ingot.cli.template_options import MAX_BYTES, check_name, given_template
from ingot.errors import UsageError
from tests.support.core import core

FOR_EVER = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
CALLS_ITSELF = "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"
DOUBLES = "{% set ns = namespace(x='a') %}{% for i in range(40) %}{% set ns.x = ns.x ~ ns.x %}"


def test_a_name_stays_a_name_and_a_file_is_read(tmp_path, monkeypatch) -> None:
    assert given_template(None) is None
    assert given_template("tool_use") == "tool_use"
    (tmp_path / "own").write_text("{{ messages[0].content }}")
    monkeypatch.chdir(tmp_path)
    assert given_template("./own") == given_template(str(tmp_path / "own"))
    assert given_template("own") == "own"


def test_a_template_may_refuse_a_message_of_one_word(tmp_path) -> None:
    """It is tried to see that it ends; what it takes is found out with the real messages."""
    path = tmp_path / "strict.jinja"
    path.write_text("{{ raise_exception('the first message is the system’s') }}{{ x.y.z }}")
    assert given_template(str(path)) == path.read_text()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"\xff\xfe{{ messages }}", "is no text"),
        (b"\x00{{ messages }}", "is no template"),
        (b"GGUF\x03\x00\x00\x00", "is no template"),
        (b"Answer the question.", "is no template: it has no {{ or {%"),
        (b"{{ messages }}" * MAX_BYTES, f"larger than {MAX_BYTES} bytes"),
        (b"{% for m in messages %}", "the chat template is not valid: Unexpected end of template"),
        (b"{{ " + b"(" * 5000, "the chat template is not valid"),
        (b"{{ messages.__class__.__mro__ }}", "access to attribute '__class__'"),
    ],
)
def test_what_is_no_template_is_refused(tmp_path, data, said) -> None:
    path = tmp_path / "own.jinja"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=r"--chat-template .*own\.jinja") as caught:
        given_template(str(path))
    assert said in caught.value.found
    assert caught.value.hint


@pytest.mark.parametrize(
    ("source", "said"),
    core(
        (FOR_EVER, "it does not come to an end"),
        (CALLS_ITSELF, "it calls itself without an end"),
        further=[
            ("{{ 10 ** (10 ** 10) }}", "it makes more than 16777216"),
            (f"{DOUBLES}{{% endfor %}}", "it makes more than 16777216"),
            ("{{ 'a' * 10 ** 12 }}", "it makes more than 16777216"),
            ("{% for i in range(9999) %}{{ 'a' * 9999 }}{% endfor %}", "the prompt is longer than"),
        ],
    ),
)
def test_a_template_that_does_not_end_is_found_in_time(tmp_path, source, said) -> None:
    path = tmp_path / "own.jinja"
    path.write_text(source)
    with pytest.raises(UsageError) as caught:
        given_template(str(path))
    assert said in caught.value.found


def test_what_is_no_file_is_refused(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe.jinja")
    for name, said in [
        ("no-such.jinja", "no such file or directory"),
        (".", "not a regular file"),
        ("pipe.jinja", "not a regular file"),
        ("a\0.jinja", "null byte"),
    ]:
        with pytest.raises(UsageError, match=r"--chat-template .* cannot be read") as caught:
            given_template(f"{tmp_path}/{name}")
        assert said in caught.value.found


def test_names_are_those_of_the_model() -> None:
    known = SimpleNamespace(chat_templates={"default": "{{ a }}", "tool_use": "{{ b }}"})
    for given in (None, "tool_use", "{{ own }}"):
        check_name(given, known)
    with pytest.raises(UsageError, match="no chat template 'rag'") as caught:
        check_name("rag", known)
    assert "It has default, tool_use." in caught.value.hint
