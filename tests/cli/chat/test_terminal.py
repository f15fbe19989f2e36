"""Conversations on a pseudo-terminal: keys, prompts, colours, Ctrl-C."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from tests.cli.fake_llm import MAX_MODEL_LEN
from tests.cli.sample_artifact import write_sample
from tests.support.terminal import Terminal

DIM, PLAIN = "\033[2m", "\033[0m"
LEFT, UP = "\033[D", "\033[A"
CTRL_D = "\x04"
LEAVES = "(Ctrl-C again leaves, and so does Ctrl-D.)"

Open = Callable[..., Terminal]


@pytest.fixture
def environment(tmp_path):
    """That of a user with a colourful terminal, without what a user may have set up."""
    unset = ("NO_COLOR", "COLUMNS", "LINES")
    kept = {name: value for name, value in os.environ.items() if name not in unset}
    return {
        **kept,
        "TERM": "xterm",
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "INPUTRC": os.devnull,
    }


@pytest.fixture
def open_chat(tmp_path, environment):
    """Opens `ingot run MODEL` with the made-up model on a terminal."""
    model = str(write_sample(tmp_path / "sample.ingot"))
    command = [sys.executable, "-m", "tests.cli.fake_llm", "run", model]
    with ExitStack() as stack:
        yield lambda *options, variables=None, **form: stack.enter_context(
            Terminal([*command, *options], {**environment, **(variables or {})}, **form)
        )


def press_ctrl_c(chat: Terminal) -> None:
    """Presses Ctrl-C once, which ends no conversation."""
    chat.interrupt()
    chat.until(LEAVES)
    chat.until("> ")


def test_a_terminal_without_a_prompt_opens_a_conversation(open_chat: Open):
    chat = open_chat()
    chat.until("sample: /help lists the commands, Ctrl-D leaves.")
    chat.until("> ")
    chat.type("one\r")
    chat.until("Once more\r\n")
    chat.until("> ")
    chat.type("prompt\r")
    chat.until("(<user>one<assistant>Once more<user>prompt)")
    chat.until("> ")
    chat.type(CTRL_D)
    code, rest = chat.end()
    assert code == 0
    assert "error" not in rest


def test_ctrl_c_stops_an_answer_and_keeps_what_was_said(open_chat: Open):
    chat = open_chat()
    chat.until("> ")
    chat.type("wait\r")
    chat.until("Once ")
    press_ctrl_c(chat)
    chat.type("prompt\r")
    chat.until("(<user>wait<assistant>Once <user>prompt)")
    chat.type("/bye\r")
    assert chat.end()[0] == 0


def test_ctrl_c_on_an_empty_line_leaves_only_after_another(open_chat: Open):
    chat = open_chat()
    chat.until("> ")
    press_ctrl_c(chat)
    for _ in range(2):
        chat.type("half a line")
        chat.until("half a line")
        press_ctrl_c(chat)
    chat.type("one\r")  # none of the dropped lines; it begins the count anew
    chat.until("Once more")
    chat.until("> ")
    press_ctrl_c(chat)
    chat.interrupt()
    code, rest = chat.end()
    assert (code, LEAVES in rest) == (0, False)


def test_ctrl_c_drops_a_text_of_several_lines(open_chat: Open):
    chat = open_chat()
    chat.until("> ")
    chat.type('"""one\r')
    chat.until("... ")
    press_ctrl_c(chat)
    chat.type("two\\\r")
    chat.until("... ")
    chat.type("prompt\r")
    chat.until("Once more")
    chat.type("prompt\r")
    chat.until("(<user>two\r\nprompt<assistant>Once more<user>prompt)")


def test_lines_can_be_edited_and_recalled(open_chat: Open):
    chat = open_chat()
    chat.until("> ")
    chat.type(f"promp{LEFT * 5}X{LEFT}\033[3~\033[Ft\r")  # X in front, deleted again; t at the end
    chat.until("(<user>prompt)")
    chat.until("> ")
    chat.type("/clear\r")
    chat.until("(Forgotten.)")
    chat.type(f"{UP * 2}\r")
    chat.until("(<user>prompt)")


def test_the_history_is_remembered_and_private(open_chat: Open, tmp_path):
    for line, answer in (("prompt", "(<user>prompt)"), ("one", "Once more")):
        chat = open_chat()
        chat.until("> ")
        chat.type(f"{line}\r")
        chat.until(answer)
        chat.process.kill()  # each line is written at once
        chat.end()
    chat = open_chat()
    chat.until("> ")
    chat.type(f"{UP * 2}\r")
    chat.until("(<user>prompt)")
    file = tmp_path / "state" / "ingot" / "history"
    assert file.read_text() == "prompt\none\nprompt\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_without_a_place_for_the_history(open_chat: Open, tmp_path):
    (tmp_path / "state").write_text("a file")
    chat = open_chat()
    chat.until("> ")
    chat.type(f"prompt\r/clear\r{UP * 2}\r/bye\r")
    code, rest = chat.end()
    assert (code, rest.count("(<user>prompt)"), "error" in rest) == (0, 2, False)


def test_a_refused_message_ends_nothing(open_chat: Open):
    chat = open_chat()
    chat.until("> ")
    chat.type(f"{'x' * MAX_MODEL_LEN}\r")
    chat.until("error: the message is too long")
    chat.type("/xyzzy\r")
    chat.until("error: there is no command /xyzzy")
    chat.type("one\r")
    chat.until("Once more")
    chat.type("/bye\r")
    assert chat.end()[0] == 0


@pytest.mark.cases(core=2)
@pytest.mark.parametrize(
    ("options", "variables", "shown"),
    [
        ([], {}, f"{DIM}Well now{PLAIN}\r\n\r\nYes.\r\n"),
        (["--think=show"], {}, "<think>\r\nWell now\r\n</think>\r\n\r\nYes.\r\n"),
        (["--think=hide"], {}, "thinking ...\r\033[KYes.\r\n"),
        ([], {"NO_COLOR": "1"}, "<think>\r\nWell now\r\n</think>\r\n\r\nYes.\r\n"),
        ([], {"TERM": "dumb"}, "<think>\r\nWell now\r\n</think>\r\n\r\nYes.\r\n"),
        (["--think=hide"], {"NO_COLOR": "1"}, "Yes.\r\n"),
    ],
)
def test_thinking_is_dimmed_shown_or_hidden(open_chat: Open, options, variables, shown):
    chat = open_chat("think", "--chat", *options, variables=variables)
    assert chat.end() == (0, shown)


@pytest.mark.cases(core=1)
@pytest.mark.parametrize("think", ["dim", "hide"])
def test_ctrl_c_while_the_model_thinks_leaves_the_terminal_as_it_was(open_chat: Open, think):
    chat = open_chat(f"--think={think}")
    chat.until("> ")
    chat.type("ponder\r")
    chat.until("Well" if think == "dim" else "thinking ...")
    chat.interrupt()
    chat.until(PLAIN if think == "dim" else "\033[K")
    chat.until(LEAVES)


@pytest.mark.cases(core=1)
@pytest.mark.parametrize("columns", [40, 80])
def test_help_holds_on_the_terminal(open_chat: Open, columns):
    chat = open_chat(columns=columns)
    chat.until("> ")
    chat.type("/help\r/bye\r")
    code, rest = chat.end()
    assert code == 0
    lines = rest[rest.index("  /help") :].split("\r\n")
    assert max(map(len, lines)) <= columns


def test_nothing_but_answers_goes_into_a_pipe(open_chat: Open):
    chat = open_chat(piped=True)
    chat.type("think\r/help\r/bye\r")
    out = chat.process.stdout.read()
    assert out.decode() == "<think>\nWell now\n</think>\n\nYes.\n"
    assert chat.end()[0] == 0


def test_json_on_a_terminal_has_no_prompts(open_chat: Open):
    chat = open_chat("--json")
    chat.type("one\r/bye\r")
    code, rest = chat.end()
    assert code == 0
    assert "> " not in rest
    assert '{"text": "Once more", ' in rest
