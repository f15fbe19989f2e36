"""`ingot run` around a model that is made up: prompts in, streamed text out."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace

import pytest

import ingot.cli.run_stats
import ingot.runtime.llm
from ingot.cli.main import main
from ingot.cli.sampling_defaults import sampling_defaults
from ingot.errors import ArtifactError
from ingot.runtime.config import EngineConfig
from ingot.runtime.generation_config import FILE
from ingot.runtime.metrics import EngineCounters
from tests.cli.fake_llm import MAX_MODEL_LEN, FakeLLM, FakeTokenizer
from tests.cli.sample_artifact import write_sample


@pytest.fixture
def model(monkeypatch, tmp_path):
    monkeypatch.setattr(ingot.runtime.llm, "LLM", FakeLLM)
    monkeypatch.setattr(ingot.cli.run_stats, "read_bandwidth", lambda artifact, nbytes: 1e9)
    for kept in ("opened", "prompts", "params"):
        monkeypatch.setattr(FakeLLM, kept, [])
    monkeypatch.setattr(FakeLLM, "closed", 0)
    return str(write_sample(tmp_path / "sample.ingot"))


def type_in(monkeypatch, text: str, terminal: bool) -> None:
    stdin = io.StringIO(text)
    stdin.isatty = lambda: terminal
    monkeypatch.setattr("sys.stdin", stdin)


def test_text_goes_to_stdout(model, capsys):
    assert main(["run", model, "hello", "--max-tokens", "9", "--temperature", "0.5"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "Once more\n"
    assert captured.err == ""
    assert FakeLLM.prompts == ["hello"]
    assert (FakeLLM.params[0].max_tokens, FakeLLM.params[0].temperature) == (9, 0.5)
    assert FakeLLM.closed == 1


def test_a_piped_prompt_loses_one_newline(model, monkeypatch):
    type_in(monkeypatch, "two\nlines\n\n", terminal=False)
    assert main(["run", model]) == 0
    assert FakeLLM.prompts == ["two\nlines\n"]


def test_an_empty_stdin_is_a_usage_error(model, monkeypatch, capsys):
    type_in(monkeypatch, "", terminal=False)
    assert main(["run", model]) == 2
    assert "prompt" in capsys.readouterr().err


@pytest.mark.parametrize("order", [("hello", "--chat"), ("--chat", "hello")])
def test_chat_goes_through_the_template(model, order):
    assert main(["run", model, *order]) == 0
    assert FakeLLM.prompts == ["<user>hello"]


def test_a_system_message_makes_the_prompt_a_message(model, monkeypatch):
    assert main(["run", model, "hello", "--system", "Be brief."]) == 0
    type_in(monkeypatch, "two\nlines\n", terminal=False)
    assert main(["run", model, "--system", "Be brief."]) == 0
    assert FakeLLM.prompts == [
        "<system>Be brief.<user>hello",
        "<system>Be brief.<user>two\nlines",
    ]


@pytest.mark.parametrize("arguments", [["--chat"], ["hello", "--chat"], ["hello", "--system=x"]])
def test_a_model_without_a_template_says_what_to_do(model, monkeypatch, capsys, arguments):
    monkeypatch.setattr(FakeTokenizer, "has_chat_template", False)
    assert main(["run", model, *arguments]) == 2
    assert capsys.readouterr().err == (
        "error: the model has no chat template, so it can only continue a text\n"
        '  Give one: ingot run MODEL "text", or pipe one in.\n'
    )
    assert FakeLLM.prompts == []


@pytest.mark.parametrize("chat", [[], ["--chat"]])
def test_options_of_answers(model, chat):
    options = ["--stop", r"\n\n", "--stop=END", "--min-p=0.1", "--repetition-penalty=1.2"]
    assert main(["run", model, "hello", *chat, *options, "--threads=3"]) == 0
    (params,) = FakeLLM.params
    assert params.stop == ("\n\n", "END")
    assert (params.min_p, params.repetition_penalty) == (0.1, 1.2)
    assert FakeLLM.opened[0].num_threads == 3


def test_an_answer_may_be_a_quarter_of_the_longest_sequence(model):
    assert main(["run", model, "hello"]) == 0
    assert main(["run", model, "hello", "--chat"]) == 0
    assert main(["run", model, "hello", "--chat", "--max-tokens=7"]) == 0
    assert main(["run", model, "hello", "--chat", "--max-model-len=80"]) == 0
    assert [params.max_tokens for params in FakeLLM.params] == [256, MAX_MODEL_LEN // 4, 7, 20]


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ([], "<think>\nWell now\n</think>\n\nYes.\n"),
        (["--think=show"], "<think>\nWell now\n</think>\n\nYes.\n"),
        (["--think=hide"], "Yes.\n"),
    ],
)
def test_thinking_keeps_its_tags_where_nothing_can_be_dimmed(model, capsys, arguments, shown):
    assert main(["run", model, "think", "--chat", *arguments]) == 0
    assert capsys.readouterr().out == shown


def test_json_keeps_thinking_apart(model, monkeypatch, capsys):
    assert main(["run", model, "think", "--chat", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert (value["thinking"], value["text"]) == ("Well now", "Yes.")
    assert main(["run", model, "think", "--json"]) == 0  # a completion is what the model wrote
    value = json.loads(capsys.readouterr().out)
    assert value["text"] == "<think>\nWell now\n</think>\n\nYes."
    assert "thinking" not in value


def test_a_prompt_can_begin_the_thinking(model, monkeypatch, capsys):
    monkeypatch.setattr(FakeLLM, "prompt_end", "<think>\n")
    assert main(["run", model, "hello", "--chat", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert (value["thinking"], value["text"]) == ("Once more", "")


def test_stats_go_to_stderr(model, capsys):
    assert main(["run", model, "hello", "--stats"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "Once more\n"
    for part in ("first token", "5 tokens at", "9 tokens at", "% of the limit", "reads 1.60 KB"):
        assert part in captured.err


def test_json_has_text_tokens_and_stats(model, capsys):
    assert main(["run", model, "hello", "--json", "--stats", "--max-tokens", "6"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["text"] == "Once m"
    assert value["token_ids"] == [ord(character) for character in "Once m"]
    assert value["finish_reason"] == "length"
    assert value["stats"]["num_prompt_tokens"] == 5
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


@pytest.mark.parametrize(
    ("config", "defaults"),
    [
        (
            {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": 0},
            {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
        ),
        ({"temperature": 0.6, "top_k": "all", "top_p": 0}, {"temperature": 0.0}),
        (
            {"do_sample": False, "repetition_penalty": 1.1, "max_new_tokens": 9},
            {"temperature": 0.0, "repetition_penalty": 1.1},
        ),
        (
            {"do_sample": True, "min_p": 0.1, "repetition_penalty": 1.1, "max_new_tokens": 9},
            {"min_p": 0.1, "repetition_penalty": 1.1},
        ),
        ({"do_sample": True}, {}),
        (None, {"temperature": 0.0}),
    ],
)
def test_sampling_defaults_are_the_models(config, defaults):
    assert sampling_defaults(artifact_with(config)) == defaults


def artifact_with(config):
    files = {} if config is None else {FILE: json.dumps(config).encode()}
    return SimpleNamespace(manifest=SimpleNamespace(files=files), read=files.__getitem__)


@pytest.mark.parametrize(
    "config", [{"do_sample": True, "temperature": "0.6"}, {"repetition_penalty": -1}]
)
def test_a_default_out_of_range_is_a_fault_of_the_models_file(config):
    with pytest.raises(ArtifactError, match=r"generation_config\.json: (temperature|repetition)"):
        sampling_defaults(artifact_with(config))


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
