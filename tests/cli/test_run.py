"""`ingot run` around a model that is made up: prompts in, streamed text out."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace
from typing import ClassVar

import pytest

import ingot.cli.run_stats
import ingot.runtime.llm
from ingot.cli.main import main
from ingot.runtime.output import TextDelta
from ingot.runtime.params import SamplingParams
from tests.cli.sample_artifact import write_sample


class FakeTokenizer:
    """A token a character."""

    def encode(self, text, add_special_tokens=True):
        return [ord(character) for character in text]

    def apply_chat_template(self, messages):
        return "".join(f"<{message['role']}>{message['content']}" for message in messages)


class FakeLLM:
    """Answers with three pieces; the last prompt and parameters are kept on the class."""

    prompts: ClassVar[list[str]] = []
    params: ClassVar[list[SamplingParams]] = []
    fail: BaseException | None = None
    closed = 0

    def __init__(self, path, *, max_model_len=None):
        from ingot.artifact.reader import Artifact

        self.artifact = Artifact.open(path)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        FakeLLM.closed += 1

    def get_tokenizer(self):
        return FakeTokenizer()

    def stream(self, prompt, params):
        FakeLLM.prompts.append("".join(map(chr, prompt["prompt_token_ids"])))
        FakeLLM.params.append(params)
        yield TextDelta(text="Once ", token_ids=[1])
        if FakeLLM.fail:
            raise FakeLLM.fail
        yield TextDelta(text="", token_ids=[2])
        yield TextDelta(text="more", token_ids=[3], finish_reason="length")


@pytest.fixture
def model(monkeypatch, tmp_path):
    monkeypatch.setattr(ingot.runtime.llm, "LLM", FakeLLM)
    monkeypatch.setattr(ingot.cli.run_stats, "read_bandwidth", lambda artifact, nbytes: 1e9)
    monkeypatch.setattr(FakeLLM, "prompts", [])
    monkeypatch.setattr(FakeLLM, "params", [])
    monkeypatch.setattr(FakeLLM, "closed", 0)
    return str(write_sample(tmp_path / "sample.ingot"))


def type_in(monkeypatch, text: str, terminal: bool) -> None:
    stdin = io.StringIO(text)
    stdin.isatty = lambda: terminal
    monkeypatch.setattr("sys.stdin", stdin)


def test_text_goes_to_stdout(model, capsys):
    assert main(["run", model, "hello", "--max-tokens", "3", "--temperature", "0.5"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "Once more\n"
    assert captured.err == ""
    assert FakeLLM.prompts == ["hello"]
    assert (FakeLLM.params[0].max_tokens, FakeLLM.params[0].temperature) == (3, 0.5)
    assert FakeLLM.closed == 1


def test_a_piped_prompt_loses_one_newline(model, monkeypatch):
    type_in(monkeypatch, "two\nlines\n\n", terminal=False)
    assert main(["run", model]) == 0
    assert FakeLLM.prompts == ["two\nlines\n"]


@pytest.mark.parametrize(("piped", "terminal"), [("", False), ("", True)])
def test_no_prompt_is_a_usage_error(model, monkeypatch, capsys, piped, terminal):
    type_in(monkeypatch, piped, terminal)
    assert main(["run", model]) == 2
    assert "prompt" in capsys.readouterr().err


@pytest.mark.parametrize("order", [("hello", "--chat"), ("--chat", "hello")])
def test_chat_goes_through_the_template(model, order):
    assert main(["run", model, *order]) == 0
    assert FakeLLM.prompts == ["<user>hello"]


def test_a_conversation_keeps_its_turns(model, monkeypatch, capsys):
    type_in(monkeypatch, "one\n\ntwo\n", terminal=True)
    assert main(["run", model, "--chat"]) == 0
    assert FakeLLM.prompts == ["<user>one", "<user>one<assistant>Once more<user>two"]
    assert "Once more" in capsys.readouterr().out


def test_stats_go_to_stderr(model, capsys):
    assert main(["run", model, "hello", "--stats"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "Once more\n"
    for part in ("first token", "5 tokens at", "3 tokens at", "% of the limit", "reads 1.60 KB"):
        assert part in captured.err


def test_json_has_text_tokens_and_stats(model, capsys):
    assert main(["run", model, "hello", "--json", "--stats"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["text"] == "Once more"
    assert value["token_ids"] == [1, 2, 3]
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
        ({"temperature": 0.6}, {"temperature": 0.0}),
        (
            {"do_sample": True, "min_p": 0.1, "repetition_penalty": 1.1, "max_new_tokens": 9},
            {"min_p": 0.1, "repetition_penalty": 1.1},
        ),
        ({"do_sample": True}, {}),
        (None, {"temperature": 0.0}),
    ],
)
def test_sampling_defaults_are_the_models(config, defaults):
    from ingot.cli.sampling_defaults import sampling_defaults
    from ingot.runtime.generation_config import FILE

    files = {} if config is None else {FILE: json.dumps(config).encode()}
    artifact = SimpleNamespace(manifest=SimpleNamespace(files=files), read=files.__getitem__)
    assert sampling_defaults(artifact) == defaults
