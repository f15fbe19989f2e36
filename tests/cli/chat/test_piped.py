"""Conversations of piped lines: what is said, commands, errors, JSON."""

from __future__ import annotations

import io
import json

import pytest

import ingot.cli.run_stats
import ingot.runtime.llm
from ingot.cli.chat.commands import COMMANDS, KEYS, help_text
from ingot.cli.main import main
from ingot.errors import RequestError, ResourceError
from tests.cli.fake_llm import MAX_MODEL_LEN, FakeLLM
from tests.cli.sample_artifact import write_sample


@pytest.fixture
def chat(monkeypatch, tmp_path, capsys):
    """Pipes lines into a conversation; gives the exit code, stdout and stderr."""
    monkeypatch.setattr(ingot.runtime.llm, "LLM", FakeLLM)
    monkeypatch.setattr(ingot.cli.run_stats, "read_bandwidth", lambda artifact, nbytes: 1e9)
    model = str(write_sample(tmp_path / "sample.ingot"))
    for kept in ("opened", "prompts", "params", "templates"):
        monkeypatch.setattr(FakeLLM, kept, [])

    def chat(*lines: str, options: tuple[str, ...] = ()) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        return main(["run", model, "--chat", *options]), *capsys.readouterr()

    return chat


def test_each_line_is_a_message(chat):
    assert chat("one", "", "two") == (0, "Once more\nOnce more\n", "")
    assert FakeLLM.prompts == ["<user>one", "<user>one<assistant>Once more<user>two"]


def test_lines_may_end_as_windows_ends_them(chat):
    assert chat("one\\\r", "two\r", "/bye\r", "three")[0] == 0
    assert FakeLLM.prompts == ["<user>one\ntwo"]


def test_thinking_is_kept_apart_from_what_was_said(chat):
    chat("think", "one")
    assert FakeLLM.prompts[1] == "<user>think<assistant>Yes.<user>one"


def test_a_message_that_is_too_long_is_refused_and_the_conversation_goes_on(chat):
    code, out, err = chat("x" * MAX_MODEL_LEN, "one")
    assert (code, out) == (2, "Once more\n")
    assert err.startswith("error: the message is too long: with it the conversation has 206 tokens")
    assert FakeLLM.prompts == ["<user>one"]


def test_a_message_that_fills_the_context_can_be_followed_by_clear(chat):
    code, out, err = chat("one", "x" * 180, "/clear", "x" * 180)
    assert (code, out) == (2, "Once more\nOnce more\n")
    assert "error: the context is full: with this message the conversation has 215 tokens" in err
    assert "/clear begins anew" in err


def test_an_answer_that_fills_the_context_says_so(chat):
    _, _, err = chat("fill", options=("--max-tokens=1k",))
    assert err == "(The context is full: 200 tokens. /clear begins anew.)\n"
    _, _, err = chat("fill")
    assert err == "(Cut after 50 tokens; see /set max-tokens.)\n"


def test_a_message_without_an_answer_is_taken_back(chat):
    _, _, err = chat("nothing", "one")
    assert err == "(The answer is empty, so the message is taken back.)\n"
    assert FakeLLM.prompts[1] == "<user>one"


def test_an_error_ends_an_answer_and_nothing_else(chat, monkeypatch):
    monkeypatch.setattr(FakeLLM, "fail", ResourceError("no"))
    assert chat("one", "two") == (5, "Once \nOnce \n", "error: no\nerror: no\n")
    assert FakeLLM.prompts[1] == "<user>one<assistant>Once <user>two"


def test_json_is_a_line_an_answer(chat):
    code, out, _ = chat("one", "x" * 300, "think", options=("--json", "--stats"))
    first, refused, last = map(json.loads, out.splitlines())
    assert code == 2
    assert (first["text"], first["finish_reason"]) == ("Once more", "stop")
    assert first["stats"]["num_tokens"] == len(first["token_ids"])
    assert (refused["error"]["type"], refused["error"]["exit_code"]) == ("RequestError", 2)
    assert (last["thinking"], last["text"]) == ("Well now", "Yes.")


def test_stats_follow_each_answer(chat):
    _, out, err = chat("one", "two", options=("--stats",))
    assert out == "Once more\nOnce more\n"
    assert err.count("first token") == 2


def test_options_hold_for_each_answer(chat):
    chat("one", "two", options=("--system=Be brief.", "--stop=END", "--min-p=0.1", "--threads=2"))
    assert FakeLLM.prompts[0] == "<system>Be brief.<user>one"
    assert [(params.stop, params.min_p) for params in FakeLLM.params] == [(("END",), 0.1)] * 2
    assert FakeLLM.opened[0].num_threads == 2


def test_bye_ends_it(chat):
    assert chat("one", "/bye", "two") == (0, "Once more\n", "")


def test_system_is_shown_set_and_removed(chat):
    _, _, err = chat("/system", "/system Be brief.", "one", "/system none", "two")
    assert err == "(There is no system message.)\nBe brief.\n(There is no system message.)\n"
    assert FakeLLM.prompts == [
        "<system>Be brief.<user>one",
        "<user>one<assistant>Once more<user>two",
    ]


def test_a_system_message_that_the_template_leaves_out_is_refused(chat):
    lines = ("/system Be brief.", "/system", "one")
    code, _, err = chat(*lines, options=("--chat-template=quiet",))
    assert code == 2
    assert err.startswith("error: the chat template leaves out the system message")
    assert err.endswith("(There is no system message.)\n")
    assert FakeLLM.prompts == ["<user>one"]


def test_clear_keeps_the_system_message(chat):
    chat("/system Be brief.", "one", "/clear", "two")
    assert FakeLLM.prompts[1] == "<system>Be brief.<user>two"


def test_a_saved_conversation_can_be_taken_up(chat, tmp_path):
    path = tmp_path / "talk.json"
    code, _, err = chat("/system Be brief.", "one", f"/save {path}", "/clear", "/system none")
    assert (code, f"(Saved 2 messages to {path}.)" in err) == (0, True)
    _, _, err = chat(f"/load {path}", "two")
    assert err == "(Loaded 2 messages: 46 of 200 tokens.)\n"
    assert FakeLLM.prompts[-1] == "<system>Be brief.<user>one<assistant>Once more<user>two"


def test_a_conversation_that_the_template_refuses_is_not_loaded(chat, tmp_path, monkeypatch):
    def refuse(self, messages, add_generation_prompt=True, **template):
        if not add_generation_prompt:
            raise RequestError("the chat template refuses the messages")
        return chat_prompt(self, messages, **template)

    chat_prompt = FakeLLM.chat_prompt
    monkeypatch.setattr(FakeLLM, "chat_prompt", refuse)
    path = tmp_path / "talk.json"
    path.write_text('[{"role": "user", "content": "hi"}]')
    code, _, err = chat("one", f"/load {path}", "two")
    assert (code, "refuses" in err) == (2, True)
    assert FakeLLM.prompts[-1] == "<user>one<assistant>Once more<user>two"


def test_stats_show_speed_and_context(chat):
    _, _, err = chat("/stats")
    assert err == "context  0 of 200 tokens\n"
    _, _, err = chat("one", "/stats")
    assert "first token" in err
    assert "context      29 of 200 tokens" in err


def test_set_changes_what_answers_are_made_by(chat):
    chat("one", "/set temperature 0.5", "/set  top-k\t 7", r"/set stop \n\n", "two")
    before, after = FakeLLM.params
    assert (before.temperature, before.top_k, before.stop) == (0.8, 40, ())
    assert (after.temperature, after.top_k, after.stop) == (0.5, 7, ("\n\n",))


def test_default_takes_a_choice_back(chat):
    chat("/set seed default", "/set max-tokens 9", "one", options=("--seed=5", "--max-tokens=3"))
    assert (FakeLLM.params[0].seed, FakeLLM.params[0].max_tokens) == (None, 9)


def test_set_shows_all(chat):
    _, _, err = chat("/set", options=("--stop=a", "--stop=b"))
    assert (
        err.split()
        == (
            'max-tokens 50 stop "a" "b" temperature 0.8 top-k 40 top-p 0.95 min-p 0.05 '
            "repetition-penalty 1.0 seed none think dim max-thinking-tokens none "
            "chat-template-kwargs none"
        ).split()
    )
    assert chat("/set stop END", "/set think hide")[2] == '  stop  "END"\n  think  hide\n'


def test_think_can_be_set(chat):
    assert chat("/set think hide", "think")[1] == "Yes.\n"
    assert chat("/set think show", "think")[1] == "<think>\nWell now\n</think>\n\nYes.\n"


def test_thinking_can_be_switched_by_a_template_that_has_a_switch(chat):
    lines = ("one", "/set think off", "two", "/set think show", "three", "/set think default", "x")
    chat(*lines, options=("--chat-template", "quiet"))
    off, on = ("quiet", ("enable_thinking", False)), ("quiet", ("enable_thinking", True))
    assert FakeLLM.templates == [("quiet",), off, on, ("quiet",)]
    chat("one", "/stats", options=("--chat-template=quiet", "--no-think"))
    assert FakeLLM.templates[4:] == [off, ("quiet",)]


def test_thinking_is_told_by_the_marks_of_the_template(chat):
    code, out, _ = chat(
        "channels", options=("--chat-template=harmony", "--json", "--max-tokens=150")
    )
    answer = json.loads(out)
    assert (code, answer["thinking"], answer["text"]) == (0, "Well now", "Yes.")
    assert FakeLLM.params[0].skip_special_tokens is False


def test_thinking_can_be_bounded(chat):
    chat("one", "/set max-thinking-tokens 0", "two", options=("--max-thinking-tokens=7",))
    assert [params.reasoning.max_tokens for params in FakeLLM.params] == [7, 0]
    _, out, err = chat("/set max-thinking-tokens 7", "one", options=("--chat-template=quiet",))
    assert (out, "marks no reasoning" in err) == ("Once more\n", True)


def test_variables_of_the_template_can_be_given(chat):
    given = '--chat-template-kwargs={"effort": "low"}'
    chat("one", '/set chat-template-kwargs {"a": [1]}', "two", options=(given,))
    assert FakeLLM.templates == [(None, ("effort", "low")), (None, ("a", [1]))]


def test_an_answer_that_is_cut_within_its_thinking_says_so(chat):
    assert chat("think", options=("--max-tokens=12",))[2] == (
        "(Cut after 12 tokens, while the model was thinking; see /set max-tokens.)\n"
    )


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("/bey", "there is no command /bey\n  Did you mean /bye? /help lists them."),
        ("/xyzzy", "there is no command /xyzzy\n  /help lists them."),
        ("/clear all", "/clear takes no argument"),
        ("/save", "/save needs an argument\n  Enter /save FILE."),
        ("/load no-such.json", "no-such.json cannot be read: no such file or directory"),
        ("/save ~no-such-user/x", "~no-such-user/x cannot be written: no such file or directory"),
        ("/set top-k", "/set top-k needs a value"),
        ("/set topk 5", "there is no setting 'topk'\n  Supported: max-tokens, stop, temperature"),
        ("/set top-k few", "top-k is 'few'\n  Give a number."),
        ("/set max-tokens 0", "max-tokens: '0' is not a positive number"),
        ("/set top-p 2", "top_p is 2.0"),
        ("/set think off", "the chat template has no switch for thinking"),
        ("/set think loud", "think is 'loud'\n  Supported: show, dim, hide, off."),
    ],
)
def test_a_wrong_command_changes_nothing(chat, line, found):
    code, out, err = chat("one", line, "two")
    assert (code, out) == (2, "Once more\nOnce more\n")
    assert err.startswith(f"error: {found}")
    assert FakeLLM.prompts[1].startswith("<user>one<assistant>Once more")
    assert FakeLLM.params[0] == FakeLLM.params[1]


@pytest.mark.parametrize("columns", [40, 80])
def test_help_names_everything_and_fits(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = help_text().splitlines()
    assert max(map(len, lines)) <= columns
    first_words = [line.split()[0] for line in lines]
    for name in [command.name for command in COMMANDS] + [key for key, _ in KEYS]:
        assert name in first_words


def test_help_is_a_command(chat):
    assert "/save FILE" in chat("/help")[2]
