"""Options of answers: what the user gives over what the model says, and how each is written."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from ingot.cli.arguments import add_arguments
from ingot.cli.chat.options import ANSWER_OPTIONS, Options, stop_text
from ingot.errors import RequestError, UsageError

MODELS = {"max_tokens": 9, "temperature": 0.6, "top_k": 20, "top_p": 0.9, "min_p": 0.1, "seed": 3}


def parsed(*words: str) -> Options:
    parser = argparse.ArgumentParser()
    add_arguments(parser, ANSWER_OPTIONS)
    return Options.of(parser.parse_args(words), MODELS)


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("max-tokens", "2k", "max_tokens", 2000),
        ("stop", r"a\nb\nc", "stop", ("a\nb\nc",)),
        ("temperature", "0", "temperature", 0.0),
        ("temperature", "1.5", "temperature", 1.5),
        ("top-k", "0", "top_k", 0),
        ("top-k", "-1", "top_k", 0),
        ("top-p", "1", "top_p", 1.0),
        ("min-p", "0", "min_p", 0.0),
        ("repetition-penalty", "1.25", "repetition_penalty", 1.25),
        ("seed", "0", "seed", 0),
    ],
)
def test_what_is_given_replaces_what_the_model_says(name, text, field, value) -> None:
    """Also where it is 0, and in a conversation as on the command line."""
    changed = parsed()
    changed.set(name, text)
    for options in (parsed(f"--{name}={text}"), changed):
        found: Any = getattr(options.params, field)
        assert (found, type(found)) == (value, type(value))
        others = {n: v for n, v in MODELS.items() if n != field}
        assert {n: getattr(options.params, n) for n in others} == others


def test_default_is_what_the_model_says() -> None:
    options = parsed("--temperature=0", "--think=hide")
    for name in ("temperature", "think", "seed"):  # seed was never given
        options.set(name, "default")
    assert (options.params.temperature, options.params.seed, options.think) == (0.6, 3, "dim")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("temprature", "1", "there is no setting 'temprature'"),
        ("top-k", "2.5", "top-k is '2.5'"),
        ("top-p", "much", "top-p is 'much'"),
        ("max-tokens", "0", "max-tokens: '0' is not a positive number"),
        ("think", "loud", "think is 'loud'"),
        ("top-p", "2", "top_p"),
        ("max-thinking-tokens", "-1", "max-thinking-tokens: '-1' is not a positive number"),
        ("chat-template-kwargs", "[1]", r"chat-template-kwargs: '\[1\]' is no object of JSON"),
        ("chat-template-kwargs", "{", "chat-template-kwargs: '{' is no object of JSON"),
        ("chat-template-kwargs", '{"tools": []}', "has 'tools', which is no variable"),
    ],
)
def test_a_wrong_value_changes_nothing(name: str, text: str, said: str) -> None:
    options = parsed("--top-p=0.5", "--think=show")
    before = list(options.rows())
    with pytest.raises((UsageError, RequestError), match=said):
        options.set(name, text)
    assert list(options.rows()) == before
    options.set("seed", "1")  # and leaves nothing behind for the next
    assert options.params.top_p == 0.5


def test_rows_show_what_holds() -> None:
    assert list(parsed("--stop=a b", r"--stop=\n", "--seed=0", "--min-p=0").rows()) == [
        ("max-tokens", "9"), ("stop", '"a b" "\\n"'), ("temperature", "0.6"), ("top-k", "20"),
        ("top-p", "0.9"), ("min-p", "0.0"), ("repetition-penalty", "1.0"), ("seed", "0"),
        ("think", "dim"), ("max-thinking-tokens", "none"), ("chat-template-kwargs", "none"),
    ]  # fmt: skip
    assert dict(Options({}, {}).rows())["stop"] == "none"


def test_every_line_break_of_a_stop_string_is_one() -> None:
    assert stop_text(r"\n\nUser:\n") == "\n\nUser:\n"


def test_whether_the_model_thinks_is_asked_of_its_template() -> None:
    asked: list[bool | None] = []

    def switch(thinks: bool | None, most: int | None) -> dict[str, bool]:
        asked.append(thinks)
        if thinks is False:
            raise RequestError("no switch")
        return {} if thinks is None else {"enable_thinking": thinks}

    options = Options({}, {}, switch)
    assert (options.template_variables, options.think) == ({}, "dim")
    options.set("think", "hide")
    assert (options.template_variables, options.think) == ({"enable_thinking": True}, "hide")
    with pytest.raises(RequestError):
        options.set("think", "off")
    assert (options.template_variables, options.think) == ({"enable_thinking": True}, "hide")
    assert asked == [None, True, False]
    assert "think" not in options.chosen


def test_variables_of_the_template_are_given_over_the_switch() -> None:
    def switch(thinks: bool | None, most: int | None) -> dict[str, bool]:
        return {"enable_thinking": bool(thinks)}

    options = Options({"think": "off", "chat_template_kwargs": {"effort": "low"}}, {}, switch)
    assert options.template_variables == {"enable_thinking": False, "effort": "low"}
    options.set("chat-template-kwargs", '{"enable_thinking": true}')
    assert options.template_variables == {"enable_thinking": True}
    assert dict(options.rows())["chat-template-kwargs"] == '{"enable_thinking": true}'
    options.set("chat-template-kwargs", "default")
    assert options.template_variables == {"enable_thinking": False}


def test_a_bound_of_thinking_is_no_parameter_of_sampling() -> None:
    bounds: list[int | None] = []
    options = Options({}, {}, lambda thinks, most: bounds.append(most) or {})
    options.set("max-thinking-tokens", "0")
    assert (options.max_thinking_tokens, options.chosen) == (0, {"max_thinking_tokens": 0})
    options.set("max-thinking-tokens", "1k")
    assert bounds == [None, 0, 1000]
    assert dict(options.rows())["max-thinking-tokens"] == "1000"
