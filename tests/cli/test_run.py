"""`ingot run` around a model that is made up: prompts in, streamed text out."""

from __future__ import annotations

import io
import json

import pytest

import ingot.cli.run_stats
import ingot.runtime.llm
from ingot.cli.main import main
from ingot.errors import ArtifactError, RequestError
from ingot.runtime.config import EngineConfig
from ingot.runtime.metrics import EngineCounters
from tests.cli.fake_llm import MAX_MODEL_LEN, FakeLLM, FakeTokenizer
from tests.cli.sample_artifact import write_sample


@pytest.fixture
def model(monkeypatch, tmp_path):
    monkeypatch.setattr(ingot.runtime.llm, "LLM", FakeLLM)
    monkeypatch.setattr(ingot.cli.run_stats, "read_bandwidth", lambda artifact, nbytes: 1e9)
    for kept in ("opened", "prompts", "params", "templates"):
        monkeypatch.setattr(FakeLLM, kept, [])
    monkeypatch.setattr(FakeLLM, "closed", 0)
    return str(write_sample(tmp_path / "sample.ingot"))


def type_in(monkeypatch, text: str, terminal: bool) -> None:
    stdin = io.StringIO(text)
    stdin.isatty = lambda: terminal
    monkeypatch.setattr("sys.stdin", stdin)


def test_text_goes_to_stdout(model, capsys):
    assert main(["run", model, "hello", "--max-tokens", "12", "--temperature", "0.5"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "Once more\n"
    assert captured.err == ""
    assert FakeLLM.prompts == ["<user>hello"]
    assert (FakeLLM.params[0].max_tokens, FakeLLM.params[0].temperature) == (12, 0.5)
    assert FakeLLM.closed == 1


def test_a_piped_prompt_loses_one_newline(model, monkeypatch):
    type_in(monkeypatch, "two\nlines\n\n", terminal=False)
    assert main(["run", model]) == 0
    assert FakeLLM.prompts == ["<user>two\nlines\n"]


def test_an_empty_stdin_is_a_usage_error(model, monkeypatch, capsys):
    type_in(monkeypatch, "", terminal=False)
    assert main(["run", model]) == 2
    assert "prompt" in capsys.readouterr().err


@pytest.mark.parametrize("order", [("hello",), ("hello", "--chat"), ("--chat", "hello")])
def test_a_prompt_goes_through_the_template(model, order):
    assert main(["run", model, *order]) == 0
    assert FakeLLM.prompts == ["<user>hello"]


def test_raw_continues_the_text_as_it_is(model, monkeypatch):
    assert main(["run", model, "hello", "--raw"]) == 0
    type_in(monkeypatch, "two\nlines\n", terminal=False)
    assert main(["run", model, "--raw"]) == 0
    assert FakeLLM.prompts == ["hello", "two\nlines"]


def test_a_model_without_a_template_continues_the_text(model, monkeypatch):
    monkeypatch.setattr(FakeTokenizer, "chat_templates", {})
    assert main(["run", model, "hello"]) == 0
    assert FakeLLM.prompts == ["hello"]
    assert FakeLLM.params[0].max_tokens == 256


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--system=x"], "--system"),
        (["--system="], "--system"),
        (["--chat"], "--chat"),
        (["--chat-template=quiet"], "--chat-template"),
        (["--think=show"], "--think"),
        (["--no-think"], "--think"),
        (["--max-thinking-tokens=0"], "--max-thinking-tokens"),
        (["--chat-template-kwargs={}"], "--chat-template-kwargs"),
    ],
)
def test_raw_has_nothing_of_a_chat(model, capsys, given, said):
    assert main(["run", model, "hello", "--raw", *given]) == 2
    assert capsys.readouterr().err.startswith(f"error: --raw is given with {said}\n")
    assert FakeLLM.opened == []


def test_raw_needs_a_text(model, monkeypatch, capsys):
    type_in(monkeypatch, "hello\n", terminal=True)
    assert main(["run", model, "--raw"]) == 2
    assert "--raw is given without a text to continue" in capsys.readouterr().err


def test_a_system_message_comes_before_the_prompt(model, monkeypatch):
    assert main(["run", model, "hello", "--system", "Be brief."]) == 0
    type_in(monkeypatch, "two\nlines\n", terminal=False)
    assert main(["run", model, "--system", "Be brief."]) == 0
    assert FakeLLM.prompts == [
        "<system>Be brief.<user>hello",
        "<system>Be brief.<user>two\nlines",
    ]


@pytest.mark.parametrize(
    "arguments",
    [["--chat"], *(["hello", each] for each in ("--chat", "--system=x", "--think=hide"))],
)
def test_a_model_without_a_template_says_what_to_do(model, monkeypatch, capsys, arguments):
    monkeypatch.setattr(FakeTokenizer, "chat_templates", {})
    assert main(["run", model, *arguments]) == 2
    assert capsys.readouterr().err == (
        "error: the model has no chat template, so it can only continue a text\n"
        '  Give one: ingot run MODEL "text", or pipe one in. Or give a template: --chat-template '
        "FILE.\n"
    )
    assert FakeLLM.prompts == []


def test_another_template_can_be_given(model, monkeypatch, tmp_path):
    own = tmp_path / "own.jinja"
    own.write_text("{{ messages[0].content }}")
    assert main(["run", model, "hello", "--chat-template", str(own)]) == 0
    assert main(["run", model, "hello", "--chat-template", "quiet", "--no-think"]) == 0
    monkeypatch.setattr(FakeTokenizer, "chat_templates", {})
    assert main(["run", model, "hello", "--chat-template", str(own)]) == 0
    assert FakeLLM.templates == [
        (own.read_text(),),
        ("quiet", ("enable_thinking", False)),
        (own.read_text(),),
    ]


def test_a_template_that_the_model_has_not_is_named(model, capsys):
    assert main(["run", model, "hello", "--chat-template", "quite"]) == 2
    assert capsys.readouterr().err == (
        "error: the model has no chat template 'quite'\n"
        "  It has default, quiet, harmony. The name of a file has a dot or a slash: ./quite\n"
    )


def test_a_system_message_that_is_left_out_is_refused(model, capsys):
    assert main(["run", model, "hello", "--system=x", "--chat-template=quiet"]) == 2
    assert "the chat template leaves out the system message" in capsys.readouterr().err
    assert FakeLLM.prompts == []


def test_a_template_that_cannot_be_used_leaves_a_way_out(model, monkeypatch, capsys):
    def refuse(self, messages, **template):
        raise RequestError("the chat template is not valid: x")

    monkeypatch.setattr(FakeLLM, "chat_prompt", refuse)
    assert main(["run", model, "hello"]) == 2
    assert capsys.readouterr().err == (
        "error: the chat template is not valid: x\n"
        "  --raw continues the text without a chat template.\n"
    )
    assert main(["run", model, "hello", "--raw"]) == 0


@pytest.mark.parametrize("given", ["--no-think", "--think=off"])
def test_thinking_without_a_switch_cannot_be_switched_off(model, capsys, given):
    assert main(["run", model, "hello", given]) == 2
    assert "the chat template has no switch for thinking" in capsys.readouterr().err
    assert FakeLLM.prompts == []


def test_thinking_can_be_bounded(model):
    assert main(["run", model, "hello", "--max-thinking-tokens", "1k"]) == 0
    (params,) = FakeLLM.params
    assert params.reasoning.max_tokens == 1000


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--max-thinking-tokens=-1", "is not a positive number"),
        ("--max-thinking-tokens=some", "is not a positive number"),
        ("--chat-template-kwargs=x", "is no object of JSON"),
        ('--chat-template-kwargs={"messages": []}', "'messages', which is no variable"),
    ],
)
def test_a_wrong_value_for_the_template_is_a_usage_error(model, capsys, given, said):
    try:
        code = main(["run", model, "hello", given])
    except SystemExit as error:
        code = error.code
    assert code == 2
    assert said in capsys.readouterr().err
    assert FakeLLM.prompts == []


def test_what_no_template_marks_cannot_be_bounded(model, capsys):
    arguments = ["--chat-template=quiet", "--max-thinking-tokens=5"]
    assert main(["run", model, "hello", *arguments]) == 2
    assert "the model's chat template marks no reasoning" in capsys.readouterr().err
    assert FakeLLM.prompts == []


def test_variables_go_to_the_template(model):
    given = '--chat-template-kwargs={"enable_thinking": true, "effort": "low"}'
    assert main(["run", model, "hello", "--chat-template=quiet", "--no-think", given]) == 0
    assert FakeLLM.templates == [("quiet", ("enable_thinking", True), ("effort", "low"))]


@pytest.mark.parametrize("chat", [[], ["--raw"]])
def test_options_of_answers(model, chat):
    options = ["--stop", r"\n\n", "--stop=END", "--min-p=0.1", "--repetition-penalty=1.2"]
    assert main(["run", model, "hello", *chat, *options, "--threads=3"]) == 0
    (params,) = FakeLLM.params
    assert params.stop == ("\n\n", "END")
    assert (params.min_p, params.repetition_penalty) == (0.1, 1.2)
    assert FakeLLM.opened[0].num_threads == 3


def test_an_answer_may_fill_the_context(model):
    """Also after long thinking; only in a conversation it leaves room for what follows."""
    for options in ([], ["--raw"], ["--max-tokens=7"], ["--max-model-len=80"]):
        assert main(["run", model, "hello", *options]) == 0
    assert [params.max_tokens for params in FakeLLM.params] == [MAX_MODEL_LEN, 256, 7, 80]


def test_an_answer_is_never_empty(model, capsys):
    """Its first token is none that ends it; what is empty all the same is told."""
    assert main(["run", model, "hello"]) == main(["run", model, "hello", "--raw"]) == 0
    assert [params.min_tokens for params in FakeLLM.params] == [1, 1]
    capsys.readouterr()
    assert main(["run", model, "nothing"]) == 0
    assert capsys.readouterr().err == "(The answer is empty.)\n"


@pytest.mark.parametrize(
    ("prompt", "options", "said"),
    [
        ("hello", ["--max-tokens=4"], "(Cut after 4 tokens; see --max-tokens.)\n"),
        (
            "think",
            ["--max-tokens=12"],
            "(Cut after 12 tokens, while the model was thinking; see --max-tokens.)\n",
        ),
        ("fill", [], "(Cut after 190 tokens; the context is full.)\n"),
        ("hello", ["--raw", "--max-tokens=4"], ""),
    ],
)
def test_an_answer_that_was_cut_says_so(model, capsys, prompt, options, said):
    assert main(["run", model, prompt, *options]) == 0
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ([], "<think>\nWell now\n</think>\n\nYes.\n"),
        (["--think=show"], "<think>\nWell now\n</think>\n\nYes.\n"),
        (["--think=hide"], "Yes.\n"),
    ],
)
def test_thinking_keeps_its_tags_where_nothing_can_be_dimmed(model, capsys, arguments, shown):
    assert main(["run", model, "think", *arguments]) == 0
    assert capsys.readouterr().out == shown


def test_json_keeps_thinking_apart(model, monkeypatch, capsys):
    assert main(["run", model, "think", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert (value["thinking"], value["text"]) == ("Well now", "Yes.")
    assert (
        main(["run", model, "think", "--raw", "--json"]) == 0
    )  # a completion is what the model wrote
    value = json.loads(capsys.readouterr().out)
    assert value["text"] == "<think>\nWell now\n</think>\n\nYes."
    assert "thinking" not in value


def test_a_prompt_can_begin_the_thinking(model, monkeypatch, capsys):
    monkeypatch.setattr(FakeLLM, "prompt_end", "<think>\n")
    assert main(["run", model, "hello", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert (value["thinking"], value["text"]) == ("Once more", "")


def test_stats_go_to_stderr(model, capsys):
    assert main(["run", model, "hello", "--stats"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "Once more\n"
    for part in ("first token", "11 tokens at", "9 tokens at", "% of the limit", "reads 1.60 KB"):
        assert part in captured.err


def test_json_has_text_tokens_and_stats(model, capsys):
    assert main(["run", model, "hello", "--json", "--stats", "--max-tokens", "6"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["text"] == "Once m"
    assert value["token_ids"] == [ord(character) for character in "Once m"]
    assert value["finish_reason"] == "length"
    assert value["stats"]["num_prompt_tokens"] == len("<user>hello")
    assert value["stats"]["weight_bytes_per_token"] == 4 * (48 * 8 + 8 + 8)


def test_ctrl_c_keeps_what_was_written_and_closes_the_model(model, monkeypatch, capsys):
    monkeypatch.setattr(FakeLLM, "fail", KeyboardInterrupt())
    assert main(["run", model, "hello"]) == 130
    captured = capsys.readouterr()
    assert captured.out == "Once "
    assert "interrupted" in captured.err
    assert FakeLLM.closed == 1


def test_a_parameter_out_of_range_is_a_usage_error(model, capsys):
    assert main(["run", model, "hello", "--top-p", "1.5"]) == 2
    assert "top_p" in capsys.readouterr().err


def test_a_default_out_of_range_is_a_fault_of_the_models_file(model, monkeypatch, capsys):
    def refuse(self):
        raise ArtifactError("generation_config.json: temperature is '0.6'")

    monkeypatch.setattr(FakeLLM, "get_chat_sampling_params", refuse)
    assert main(["run", model, "hello"]) == 3
    assert "generation_config.json: temperature" in capsys.readouterr().err


def test_speculation_is_a_switch_of_the_model(model):
    given = ["--speculative", "ngram", "--num-speculative-tokens", "3"]
    assert main(["run", model, "hello", *given]) == 0
    assert main(["run", model, "hello"]) == 0
    asked, usual = (each.config for each in FakeLLM.opened[-2:])
    assert asked == EngineConfig(speculative="ngram", num_speculative_tokens=3)
    assert usual == EngineConfig()


def test_stats_say_how_many_guesses_were_right(model, monkeypatch, capsys):
    counted = iter([EngineCounters(num_draft_tokens=9, num_accepted_tokens=9)] * 3)
    last = EngineCounters(num_draft_tokens=29, num_accepted_tokens=24)
    monkeypatch.setattr(FakeLLM, "counters", lambda self: next(counted, last))
    assert main(["run", model, "hello", "--stats"]) == 0
    assert "15 of 20 guessed tokens were right" in capsys.readouterr().err
