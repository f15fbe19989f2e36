"""Answers in the format of each family: the same message, however the text is cut."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingot.runtime.answers import AnswerMessage, join, style_of
from ingot.runtime.answers.calls import HELD
from ingot.runtime.answers.formats import FORMATS, format_of
from ingot.runtime.answers.thoughts import SHELLS, THOUGHTS, shell_of, thought_of
from tests.runtime.answers import corpus, templates
from tools import tool_formats_page

STYLES = {name: style_of(template) for name, template in templates.TEMPLATES.items()}


def read(name: str, pieces: Iterable[str], prompt: str = "") -> AnswerMessage:
    """The message of an answer; calls are numbered, since no two have the same id."""
    reader = STYLES[name].reader(prompt, tools=corpus.TOOLS)
    assert reader is not None
    deltas = [delta for piece in pieces for delta in reader.feed(piece)] + reader.finish()
    message = join(deltas)
    assert reader.called == bool(message.calls)
    assert len({call.id for call in message.calls}) == len(message.calls)
    for place, call in enumerate(message.calls):
        call.id = str(place)
    return message


def said(message: AnswerMessage, wanted: corpus.Said) -> corpus.Said:
    """The message, with arguments as a text where a text of them is wanted."""
    texts = [isinstance(arguments, str) for _, arguments in wanted.calls]
    texts += [True] * (len(message.calls) - len(texts))
    calls = tuple(
        (call.name, call.arguments if as_text else json.loads(call.arguments))
        for call, as_text in zip(message.calls, texts, strict=False)
    )
    return corpus.Said(calls, message.content, message.reasoning)


def test_the_corpus_has_all_formats_and_is_large():
    assert {STYLES[name].format for name in corpus.BY_TEMPLATE} == {*FORMATS}
    assert len(corpus.CASES) >= 200


@pytest.mark.parametrize(("name", "text", "wanted"), corpus.CASES)
def test_an_answer_is_the_same_at_every_split(name: str, text: str, wanted: corpus.Said):
    whole = read(name, [text])
    assert said(whole, wanted) == wanted
    assert read(name, text) == whole
    for at in range(1, len(text)):
        assert read(name, [text[:at], text[at:]]) == whole, text[:at]


@pytest.mark.parametrize(("name", "text", "wanted"), corpus.CASES)
def test_an_answer_that_is_cut_anywhere_ends_in_no_half_tag(
    name: str, text: str, wanted: corpus.Said
):
    """As `max_tokens` cuts it. Half a tag is text only where no call and no message came before it:
    there the model may have meant it so. A call that is cut is text with all its tags."""
    halves = {mark[:size] for mark in marks_of(name) for size in range(2, len(mark))}
    for at in range(len(text)):
        message = read(name, [text[:at]])
        assert len(message.calls) <= max(1, len(wanted.calls))
        broken = any(mark in message.content for mark in STYLES[name].format.opens)
        if (message.calls or "<|channel|>" in text[:at]) and not broken:
            halved = [half for half in halves if message.content.endswith(half)]
            assert halved == [] or text[:at].endswith(wanted.content), (text[:at], halved)
        assert not any(message.reasoning.endswith(half) for half in halves)


@pytest.mark.parametrize("row", FORMATS, ids=lambda row: row.name)
def test_the_example_of_a_row_is_read(row):
    message = join_of(row.name, row.example)
    assert message.content == ""
    assert [call.name for call in message.calls] == ["add", "look_up"][: len(message.calls)]
    arguments = json.loads(message.calls[0].arguments)
    assert (arguments["a"], arguments.get("b", "x")) == (1, "x")


def join_of(parser: str, text: str) -> AnswerMessage:
    reader = style_of(None, parser).reader("", tools=corpus.TOOLS)
    assert reader is not None
    return join(reader.feed(text) + reader.finish())


def test_ids_that_a_family_counts_are_the_models_own():
    """Kimi's template prints them again, and the model finds the name of the tool there."""
    part = "<|tool_call_begin|>{}<|tool_call_argument_begin|>{{}}<|tool_call_end|>"
    written = ("functions.ping:3", "functions.ping:4", "functions.ping:4", "ping")
    message = join_of("kimi_k2", "".join(part.format(each) for each in written))
    first, second, again, without = (call.id for call in message.calls)
    assert (first, second) == written[:2]
    assert again.startswith("call_") and without.startswith("call_")


LONG_VALUES = [
    ("qwen3_coder", "<tool_call>\n<function=look_up>\n<parameter=q>\n", "\n</parameter>"),
    ("glm45", "<tool_call>look_up\n<arg_key>q</arg_key><arg_value>", "</arg_value></tool_call>"),
    ("pythonic", '[look_up(q="', '")]'),
    ("gemma4", '<|tool_call>call:look_up{q:<|"|>', '<|"|>}'),
    ("kimi_k2", '<|tool_call_begin|>look_up<|tool_call_argument_begin|>{"q": "', '"}'),
]


@pytest.mark.parametrize(("name", "begin", "end"), LONG_VALUES)
def test_long_arguments_are_handed_out_while_they_come(name: str, begin: str, end: str):
    reader = STYLES[name].reader("", tools=corpus.TOOLS)
    deltas = reader.feed(begin + "é" * HELD)
    (call,) = join(deltas).calls
    assert call.name == "look_up" and call.arguments.startswith('{"q": "éé')
    more = reader.feed("yz")
    assert [delta.call.arguments for delta in more] == ["yz"]
    rest = join(deltas + more + reader.feed(end) + reader.finish()).calls[0].arguments
    assert rest.startswith(f'{{"q": "{"é" * HELD}yz"')


@pytest.mark.parametrize("name", templates.CALLS)
def test_a_published_template_tells_its_format_and_no_other(name: str):
    for snippet in templates.CALLS[name]:
        assert format_of(snippet).name == name
        claims = [
            row.name
            for row in FORMATS
            if any(mark in snippet for mark in row.marks)
            and not any(other in snippet for other in row.others)
        ]
        assert claims[0] == name
        # Others may follow where their marks are parts of these: order decides.
        assert set(claims[1:]) <= BEHIND.get(name, set())


# Rows that come behind one, and whose marks a template of it may have.
BEHIND = {
    "deepseek_v31": {"deepseek_v3"},
    "hunyuan": {"minimax_m1"},
    "mistral_v11": {"mistral"},
    "glm45": {"hermes"},
    "qwen3_coder": {"hermes"},
    "seed_oss": {"qwen3_coder"},
    "llama4": {"llama3"},
}


def test_no_template_of_another_format_is_claimed():
    """A row before another must not have a mark that the other's template has as well."""
    for number, row in enumerate(FORMATS):
        for later in FORMATS[number + 1 :]:
            for snippet in templates.CALLS[later.name]:
                told = any(mark in snippet for mark in row.marks)
                assert not told or any(other in snippet for other in row.others), row.name


@pytest.mark.parametrize("name", templates.THOUGHTS)
def test_a_published_template_tells_how_its_model_reasons(name: str):
    for snippet in templates.THOUGHTS[name]:
        assert thought_of(snippet).name == name
        others = [row for row in THOUGHTS if row.name != name and row.end in snippet]
        assert others == []


def test_every_row_is_told_by_a_template():
    assert set(templates.CALLS) == {row.name for row in FORMATS}
    assert set(templates.THOUGHTS) == {row.name for row in THOUGHTS}
    assert set(templates.SHELLS) == {row.begin for row in SHELLS}
    for begin, snippets in templates.SHELLS.items():
        assert all(shell_of(snippet).begin == begin for snippet in snippets)
    assert shell_of(templates.CALLS["minimax_m2"][0]) is None
    assert format_of("Hello {{ name }}") is None
    assert thought_of("Hello {{ name }}") is None


@pytest.mark.parametrize("row", THOUGHTS, ids=lambda row: row.name)
def test_reasoning_that_the_prompt_has_opened(row):
    style = style_of(templates.THOUGHTS[row.name][0])
    prompt = f"Hello\n{row.begin}"
    after = f"{row.turn}{row.lead}Yes."
    for pieces in ([f"Hm. {row.end}{after}"], f"Hm. {row.end}{after}"):
        reader = style.reader(prompt)
        message = join(
            [delta for piece in pieces for delta in reader.feed(piece)] + reader.finish()
        )
        assert (message.reasoning, message.content) == ("Hm.", "Yes.")
    found = style.params(prompt, None, None, 5)["reasoning"]
    assert found == {"begin": "", "end": row.end, "closing": row.closing, "max_tokens": 5}
    assert style.params("x", None, None)["reasoning"]["begin"] == row.begin.rstrip()


@pytest.mark.parametrize("name", templates.TEMPLATES)
def test_marks_that_would_be_hidden_are_kept(name: str):
    style = STYLES[name]
    for tag in filter(None, style.format.tags()):
        hides = style_of(templates.TEMPLATES[name], hidden_tags={tag})
        assert hides.params("x", corpus.TOOLS, None)["skip_special_tokens"] is False
    if style.thought:
        for tag in style.thought.tags():
            hides = style_of(templates.TEMPLATES[name], hidden_tags={tag.rstrip()})
            assert hides.params("x", None, None)["skip_special_tokens"] is False
    other = style_of(templates.TEMPLATES[name], hidden_tags={"<|other|>"})
    assert "skip_special_tokens" not in other.params("x", None, None)


def marks_of(name: str) -> list[str]:
    style = STYLES[name]
    found = [*style.format.tags()]
    if style.thought:
        found += style.thought.tags()
    if style.shell:
        found += [style.shell.begin, style.shell.end]
    return [each for each in dict.fromkeys(found) if each]


PIECES = [
    *("add", "look_up", "ping", "unknown", "functions.", "call:", "function", ":0", "assistant"),
    *('{"name": "add", "arguments": ', '{"a": 1}', "{}", "{", "}", "[", "]", "(", ")", ",", ";"),
    *('"', "'", "\\", "\\u12", "a=1", "q=", "q:", "1", "-", ".", "e", "tru", "None", "null", "<"),
    *("\n", " ", "\n\n", "text", "é🙂", "x" * HELD, "a", "q", "to=functions.", "analysis", "```"),
]


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_no_text_of_marks_fails_or_depends_on_its_cuts(data):
    name = data.draw(st.sampled_from(sorted(templates.TEMPLATES)))
    marks = marks_of(name)
    own = [text for text, _ in corpus.BY_TEMPLATE[name]]
    part = st.sampled_from([*marks, *marks, *PIECES]) | st.sampled_from(own).flatmap(
        lambda text: st.integers(0, len(text)).map(lambda at: text[:at])
    )
    text = "".join(data.draw(st.lists(part, max_size=10)))
    whole = read(name, [text])
    assert read(name, text) == whole
    if text:
        cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)))
        bounds = itertools.pairwise([0, *cuts, len(text)])
        assert read(name, [text[a:b] for a, b in bounds]) == whole


@pytest.mark.parametrize("name", templates.TEMPLATES)
@pytest.mark.parametrize("char", ["<", " ", "[", "{"])
def test_long_hostile_text_ends_soon(name: str, char: str):
    reader = STYLES[name].reader("", tools=corpus.TOOLS)
    for _ in range(200):
        reader.feed(char * 100)
    reader.finish()


def test_the_page_of_formats_is_current():
    assert tool_formats_page.PAGE.read_text() == tool_formats_page.page(), "run `make docs`"
