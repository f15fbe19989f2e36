"""Conversations with a model on a server: of piped lines, and on a terminal."""

from __future__ import annotations

import io
import json
import os
import socket
import sys
from collections.abc import Iterator

import pytest

from ingot.cli.main import main
from tests.cli.chat.fake_server import KEY, FakeServer, fake_server
from tests.support.terminal import Terminal


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with fake_server() as server:
        yield server


@pytest.fixture
def chat(server, monkeypatch, capsys):
    """Pipes lines into a conversation; gives the exit code, stdout and stderr."""

    def chat(*lines: str, options: tuple[str, ...] = ()) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        return main(["chat", f"--url={server.url}", *options]), *capsys.readouterr()

    return chat


def test_each_line_is_a_message(chat, server):
    assert chat("one", "", "two") == (0, "Once more\nOnce more\n", "")
    assert server.asked[1] == {
        "model": "first",
        "messages": [
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "Once more"},
            {"role": "user", "content": "two"},
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_options_are_fields_of_the_request(chat, server):
    options = ("--model=second", "--temperature=0.5", "--top-k=3", "--stop=a", "--system=Be brief.")
    chat("one", "/set max-tokens 7", "two", options=(*options, "--seed=4"))
    first, second = server.asked
    assert {
        "model": "second",
        "temperature": 0.5,
        "top_k": 3,
        "stop": ["a"],
        "seed": 4,
    }.items() <= (first.items())
    assert "max_tokens" not in first
    assert second["max_tokens"] == 7
    assert first["messages"][0] == {"role": "system", "content": "Be brief."}


def test_settings_that_the_server_knows(chat):
    _, _, err = chat("/set", "/set temperature 0.5", "/set seed", options=("--top-k=3",))
    rows = dict(line.split(maxsplit=1) for line in err.splitlines())
    assert rows == rows | {"top-k": "3", "temperature": "0.5", "seed": "the server's"}
    assert rows["think"] == "dim"


def test_thinking_is_switched_off_in_the_words_of_all_templates(chat, server):
    chat("one", "/set think show", "two", options=("--no-think",))
    off, shown = (asked.get("chat_template_kwargs") for asked in server.asked)
    assert off == {"enable_thinking": False, "thinking": False}
    assert shown is None, "a server of others may refuse what it does not know"


def test_a_bound_and_variables_are_the_server_s_to_keep(chat, server):
    kwargs = '--chat-template-kwargs={"effort": "low"}'
    chat("one", "/set max-thinking-tokens 3", "two", options=("--no-think", kwargs))
    first, second = server.asked
    assert first["chat_template_kwargs"] == {
        "enable_thinking": False, "thinking": False, "effort": "low",
    }  # fmt: skip
    assert ("max_thinking_tokens" in first, second["max_thinking_tokens"]) == (False, 3)


@pytest.mark.parametrize("message", ["think", "tags"])
def test_thinking_is_told_from_the_answer(chat, server, message):
    code, out, _ = chat(message, "one", options=("--json",))
    answer = json.loads(out.splitlines()[0])
    assert code == 0
    assert (answer["text"], answer["finish_reason"]) == ("Yes.", "stop")
    assert answer["thinking"] in ("Well now", "Hm")
    assert answer["usage"]["total_tokens"] == 5
    assert server.asked[1]["messages"][1]["content"] == "Yes."


def test_what_a_server_sends_besides_is_passed_over(chat):
    assert chat("odd") == (0, "Fine.\n", "")


def test_figures_and_the_context(chat):
    _, _, err = chat("one", "/stats", options=("--stats",))
    assert err.count("first token") == 2
    assert "3 tokens" in err
    assert "context      5 of 30 tokens" in err
    _, _, err = chat("/stats", options=("--model=second",))
    assert err == "context  0 tokens\n"


def test_notes_after_an_answer(chat):
    assert chat("long")[2] == "(Cut after 2 tokens; see /set max-tokens.)\n"
    assert chat("nothing")[2] == "(The answer is empty, so the message is taken back.)\n"


def test_what_is_refused_ends_nothing(chat, server):
    code, out, err = chat("refuse", "busy", "crash", "fail", "leave", "one")
    assert out == "\n\n\nOnce \nOnce more\nOnce more\n"
    assert err == (
        "error: too many tokens\n  Send fewer.\n"
        "error: the queue is full\n"
        "error: the server answers with status 500\n"
        "error: the model died\n  Try again.\n"
        "error: the server left before the answer was complete\n"
    )
    assert code == 1
    kept = [message["content"] for message in server.asked[-1]["messages"]]
    assert kept == ["fail", "Once ", "leave", "Once more", "one"]


def test_a_key_comes_from_a_file(chat, server, tmp_path):
    server.key, path = KEY, tmp_path / "key"
    code, _, err = chat("one")
    assert (code, err) == (
        2,
        "error: no valid key was given\n  Give the key with --api-key-file FILE.\n",
    )
    path.write_text(f"{KEY}\n")
    assert chat("one", options=(f"--api-key-file={path}",))[:2] == (0, "Once more\n")
    for text in ("", "\n", "ké\n", "a\tb\n"):
        path.write_text(text)
        assert "has no key" in chat("one", options=(f"--api-key-file={path}",))[2]
    assert "cannot be read" in chat("one", options=(f"--api-key-file={tmp_path / 'none'}",))[2]


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:99999", "//", "http://[x"])
def test_an_url_that_is_none(capsys, url):
    assert main(["chat", f"--url={url}"]) == 2
    assert "Give one such as http://127.0.0.1:8000" in capsys.readouterr().err


def test_urls_as_people_give_them(server, monkeypatch, capsys):
    bare = server.url.removeprefix("http://")
    for url in (bare, f"{server.url}/", f"{server.url}/v1", f"{server.url}/v1/"):
        monkeypatch.setattr("sys.stdin", io.StringIO("one\n"))
        assert main(["chat", f"--url={url}"]) == 0
        assert capsys.readouterr().out == "Once more\n"


def test_nobody_answers(capsys):
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        assert main(["chat", f"--url={url}"]) == 1
    err = capsys.readouterr().err
    assert f"{url} cannot be reached" in err
    assert "`ingot serve MODEL` starts a server" in err


def test_a_model_that_the_server_lacks(chat):
    code, _, err = chat("one", options=("--model=third",))
    assert code == 2
    assert "has no model 'third'\n  It has first, second." in err


def test_a_terminal(server: FakeServer, tmp_path):
    """Ctrl-C stops an answer, on the server too; the conversation goes on, and can be kept."""
    kept = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    state = {"TERM": "xterm", "XDG_STATE_HOME": str(tmp_path), "INPUTRC": os.devnull}
    command = [sys.executable, "-m", "ingot.cli.main", "chat", "--url", server.url]
    with Terminal(command, {**kept, **state}) as chat:
        chat.until("first: /help lists the commands, Ctrl-D leaves.")
        chat.until("> ")
        chat.type("wait\r")
        chat.until("Once ")
        chat.type("\x03")
        chat.until("(Ctrl-C again leaves, and so does Ctrl-D.)")
        assert server.left.wait(60)
        chat.until("> ")
        chat.type("think\r")
        chat.until("\033[2mWell now\033[0m")
        chat.until("Yes.")
        chat.until("> ")
        chat.type(f"/save {tmp_path / 'talk.json'}\r")
        chat.until("(Saved 4 messages")
        chat.until("> ")
        chat.type(f"/load {tmp_path / 'talk.json'}\r")
        chat.until("(Loaded 4 messages")
        chat.until("> ")
        chat.type("\x04")
        code, rest = chat.end()
    assert code == 0
    assert "error" not in rest
    assert server.asked[1]["messages"][:2] == [
        {"role": "user", "content": "wait"},
        {"role": "assistant", "content": "Once "},
    ]
