"""Thinking and answers of every family on the command line, as they come."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from ingot.cli.chat.answer import ShownAnswer
from ingot.cli.chat.display import Display
from ingot.cli.chat.remote import RemoteAnswer
from ingot.cli.chat.thinking import AnswerParts, AnswerPiece
from ingot.errors import RequestError
from ingot.runtime.answers import guessing_reader, style_of
from ingot.runtime.answers.thoughts import THOUGHTS
from ingot.runtime.metrics import EngineCounters
from ingot.runtime.output import TextDelta
from ingot.runtime.params import SamplingParams

PLAIN = style_of("{{ messages }}")
# Of each way of reasoning, a template that has its marks, and what stands before the answer.
LEADS = {each.name: each.turn + each.lead for each in THOUGHTS}
STYLES = {each.name: style_of("".join(each.marks or (each.end,))) for each in THOUGHTS}


class Model:
    """Says these texts, and keeps the parameters that it was asked with."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = texts
        self.asked: list[SamplingParams] = []

    def counters(self) -> EngineCounters:
        return EngineCounters()

    def stream(self, prompt: Any, params: SamplingParams) -> Iterable[TextDelta]:
        self.asked.append(params)
        yield from (TextDelta(text=each, token_ids=[0]) for each in self.texts)
        yield TextDelta(text="", token_ids=[], finish_reason="stop")


class Screen(Display):
    """Keeps what it is to show."""

    def __init__(self) -> None:
        super().__init__(None, "show", escapes=False)
        self.pieces: list[AnswerPiece] = []

    def show(self, text: str, *, thinking: bool) -> None:
        self.pieces.append(AnswerPiece(text, thinking))

    def shown(self, *, thinking: bool) -> str:
        return "".join(piece.text for piece in self.pieces if piece.thinking == thinking)


def answer_to(prompt: str = "Why?", style: Any = PLAIN, most: int | None = None) -> ShownAnswer:
    return ShownAnswer({"prompt": prompt, "prompt_token_ids": [1]}, style, most)


def written(name: str, *, opened: bool = False) -> str:
    row = next(each for each in THOUGHTS if each.name == name)
    return f"{'' if opened else row.begin}Well.{row.end}{LEADS[name]}Yes."


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("name", STYLES)
def test_thinking_of_each_family_is_told_from_the_answer(name: str, opened: bool) -> None:
    row = next(each for each in THOUGHTS if each.name == name)
    text = written(name, opened=opened)
    for pieces in ([text], text):
        answer = answer_to(f"Why?{row.begin}" if opened else "Why?", STYLES[name])
        screen = Screen()
        answer.write(Model(pieces), SamplingParams(), screen)
        assert (answer.thinking, answer.text) == ("Well.", "Yes.")
        assert (screen.shown(thinking=True), screen.shown(thinking=False)) == ("Well.", "Yes.")
        assert answer.result()["thinking"] == "Well."


@pytest.mark.parametrize("name", STYLES)
def test_a_bound_and_tags_are_asked_for(name: str) -> None:
    row = next(each for each in THOUGHTS if each.name == name)
    style = style_of(row.end + "".join(row.marks), hidden_tags=[row.end])
    model = Model([])
    answer_to(style=style, most=5).write(model, SamplingParams(top_k=3), Screen())
    (params,) = model.asked
    assert (params.top_k, params.skip_special_tokens) == (3, False)
    assert params.reasoning is not None
    reasoning = (params.reasoning.begin, params.reasoning.end, params.reasoning.max_tokens)
    assert reasoning == (row.begin.rstrip(), row.end, 5)


def test_a_bound_of_what_no_template_marks_is_refused() -> None:
    with pytest.raises(RequestError, match="marks no reasoning"):
        answer_to(most=5)


@pytest.mark.parametrize(
    ("text", "thinking", "said"),
    [
        (" Yes. ", "", " Yes. "),
        ("<think>\nWell.\n</think>\n\nYes.", "Well.", "Yes."),
        ("<think>Well", "Well", ""),
        ("Write <think> and </think>.", "", "Write <think> and </think>."),
        ("[THINK]Well.[/THINK]Yes.", "Well.", "Yes."),
        ("[THIS]", "", "[THIS]"),
        ("<thin", "", "<thin"),
        *((written(name), "Well.", "Yes.") for name in STYLES),
    ],
)
def test_an_answer_may_think_though_no_template_tells(text: str, thinking: str, said: str) -> None:
    """As those of servers, whose templates are not known here."""
    for pieces in ([text], text):
        answer = answer_to()
        answer.write(Model(pieces), SamplingParams(), Screen())
        assert (answer.thinking, answer.text) == (thinking, said)
        remote = RemoteAnswer([])
        events = [{"choices": [{"delta": {"content": piece}}]} for piece in pieces]
        shown = [piece for event in events for piece in remote.take(event)]
        shown += remote.parts.take("", last=True)
        assert (remote.thinking, remote.text) == (thinking, said)
        assert "".join(piece.text for piece in shown if piece.thinking) == thinking


def test_a_text_that_is_continued_is_all_text() -> None:
    answer = ShownAnswer({"prompt_token_ids": [1]})
    answer.write(Model(["<think>a</think>", "b"]), SamplingParams(), Screen())
    assert (answer.thinking, answer.text) == ("", "<think>a</think>b")


def test_reasoning_that_a_server_told_apart_is_thinking() -> None:
    parts = AnswerParts(guessing_reader())
    for name in ("reasoning", "reasoning_content"):
        answer = RemoteAnswer([], parts=parts)
        assert [*answer.take({"choices": [{"delta": {name: "Hm"}}]})] == [AnswerPiece("Hm", True)]
    assert parts.thinking == "HmHm"
