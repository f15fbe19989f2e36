"""Answers split into reasoning, text and calls: the same, however their text is cut."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ingot.errors import RequestError, UsageError
from ingot.runtime.answers import (
    AnswerDelta,
    AnswerMessage,
    Style,
    WrittenCall,
    guessing_reader,
    join,
    style_of,
)
from ingot.runtime.answers.calls import HELD
from ingot.runtime.answers.coming import MAX_DEPTH
from ingot.runtime.answers.formats import FORMATS

QWEN, LLAMA, MISTRAL = "<tool_call> <think> </think>", "<|python_tag|>", "[TOOL_CALLS]"
STYLES = {name: style_of(name) for name in (QWEN, LLAMA, MISTRAL)}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("look_up", "add", 'odd "name"')
]


def deltas_of(style: Style, pieces: Iterable[str], prompt: str = "") -> list[AnswerDelta]:
    reader = style.reader(prompt, tools=TOOLS)
    assert reader is not None
    found = [delta for piece in pieces for delta in reader.feed(piece)] + reader.finish()
    assert reader.called == any(delta.call for delta in found)
    return found


def read(style: Style, pieces: Iterable[str], prompt: str = "") -> AnswerMessage:
    """The message of an answer; calls are numbered, since no two have the same id."""
    message = join(deltas_of(style, pieces, prompt))
    assert len({call.id for call in message.calls}) == len(message.calls)
    for place, call in enumerate(message.calls):
        call.id = str(place)
    return message


def calls(*asked: tuple[str, str], content: str = "", reasoning: str = "") -> AnswerMessage:
    made = [WrittenCall(str(i), name, arguments) for i, (name, arguments) in enumerate(asked)]
    return AnswerMessage(content, reasoning, made)


ESCAPES = r'{"text": "\" \\ \/ \b \f \n \r \t \u00e9"}'
ARGUMENTS = '{"q": "a \\"b\\" } ] </tool_call> [TOOL_CALLS]", "n": [-1.5e+3, null, true, {}]}'
LONG = json.dumps({"text": "line\n" * HELD})

CASES = [
    (QWEN, "Hello.\n", calls(content="Hello.\n")),
    (QWEN, "<think>\nHm.\n</think>\n\nYes. ", calls(content="Yes. ", reasoning="Hm.")),
    (QWEN, " <think>cut of", calls(reasoning="cut of")),
    (QWEN, "<thinking> is a tag", calls(content="<thinking> is a tag")),
    (QWEN, "a <think>b</think>", calls(content="a <think>b</think>")),
    (
        QWEN,
        "<think>Add?</think>\n\nI add.\n\n<tool_call>\n"
        f'{{"name": "add", "arguments": {ARGUMENTS}}}\n</tool_call>\n<tool_call>\n'
        '{"arguments": {"x": 1}, "id": 7, "name": "look_up"}\n</tool_call>\n',
        calls(("add", ARGUMENTS), ("look_up", '{"x": 1}'), content="I add.", reasoning="Add?"),
    ),
    (QWEN, f'<tool_call>{{"name":"add","arguments":{LONG}}}</tool_call>', calls(("add", LONG))),
    (QWEN, '<tool_call>{"name": "add"}</tool_call>', calls(("add", "{}"))),
    (
        QWEN,
        f'<tool_call>{{"name": "add", "arguments": {ESCAPES}}}</tool_call>',
        calls(("add", ESCAPES)),
    ),
    (QWEN, '<tool_call>{"name": "add", "arguments": {}</tool_call>', calls(("add", "{}"))),
    (
        QWEN,
        '<tool_call>{"name": "odd \\"name\\"", "arguments": {}}</tool_call> so',
        calls(('odd "name"', "{}"), content="so"),
    ),
    (LLAMA, f'{{"name": "add", "parameters": {ARGUMENTS}}}', calls(("add", ARGUMENTS))),
    (
        LLAMA,
        ' {"type": "function", "name": "add", "parameters": {}}; {"name": "add", "parameters": {}}',
        calls(("add", "{}"), ("add", "{}")),
    ),
    (
        LLAMA,
        'So: <|python_tag|>{"name": "add", "parameters": {}}',
        calls(("add", "{}"), content="So:"),
    ),
    (LLAMA, '{"answer": 3}', calls(content='{"answer": 3}')),
    (LLAMA, "<|python_tag|>add(1)", calls(content="<|python_tag|>add(1)")),
    (
        MISTRAL,
        f'[TOOL_CALLS] [{{"name": "add", "arguments": {ARGUMENTS}}}, '
        '{"name": "look_up", "arguments": {}}]',
        calls(("add", ARGUMENTS), ("look_up", "{}")),
    ),
    (
        MISTRAL,
        f"Yes.[TOOL_CALLS]add[ARGS]{ARGUMENTS}[TOOL_CALLS]look_up[CALL_ID]abc[ARGS]{{}}",
        calls(("add", ARGUMENTS), ("look_up", "{}"), content="Yes."),
    ),
    (MISTRAL, "[TOOL_CALLS]add{}", calls(("add", "{}"))),
]


@pytest.mark.parametrize(("style", "text", "message"), CASES)
def test_an_answer_however_it_is_cut(style, text, message):
    assert read(STYLES[style], [text]) == message
    assert read(STYLES[style], text) == message
    for size in (2, 3, 7):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert read(STYLES[style], pieces) == message


BROKEN = [
    (QWEN, "<tool_call>\n{name: add}\n</tool_call>"),
    (QWEN, '<tool_call>\n{"name": "unknown", "arguments": {}}\n</tool_call>'),
    (QWEN, '<tool_call>{"name": "add", "arguments": {"city": Paris}}</tool_call>'),
    (QWEN, '<tool_call>{"name": "add", "arguments": {"a": 1,}}</tool_call>'),
    (QWEN, '<tool_call>{"name": "add", "arguments": "text"}</tool_call>'),
    (QWEN, '<tool_call>{"name": "add", "arguments": [1]}</tool_call>'),
    (QWEN, '<tool_call>{"name": "add", "arguments": {"a": "b\nc"}}</tool_call>'),
    (QWEN, '<tool_call>{"name": "add", "arguments": {"a": 01}}</tool_call>'),
    (QWEN, '<tool_call>{"name": "add", "arguments": {"a": "\\x"}}</tool_call>'),
    (QWEN, '<tool_call>{"name": ["add"], "arguments": {}}</tool_call>'),
    (QWEN, '<tool_call>{"name": "add", "argu'),
    (QWEN, "<tool_call>[]"),
    (QWEN, "<tool_call>" + '{"a":' * 10_000),
    (QWEN, "a <tool_call"),
    (LLAMA, '{"name": "add", "parameters": {"a": nul}}'),
    (LLAMA, "{}"),
    (MISTRAL, "[TOOL_CALLS] []"),
    (MISTRAL, '[TOOL_CALLS] [{"name": "add"'),
    (MISTRAL, "[TOOL_CALLS]unknown{}"),
    (MISTRAL, "[TOOL_CALLS]" + "x" * 10_000),
    (MISTRAL, "[TOOL_CALLS]add[CALL_ID]" + "x" * 300 + "[ARGS]{}"),
]


@pytest.mark.parametrize(("style", "text"), BROKEN, ids=lambda each: each[:60])
def test_a_broken_call_is_text(style, text):
    assert read(STYLES[style], [text]) == calls(content=text)
    assert read(STYLES[style], text) == calls(content=text)


@pytest.mark.parametrize(("style", "text"), [case[:2] for case in CASES if len(case[1]) < 300])
def test_an_answer_that_ends_anywhere_is_read_alike_however_it_came(style, text):
    for size in range(len(text)):
        whole = read(STYLES[style], [text[:size]])
        assert read(STYLES[style], text[:size]) == whole


def test_arguments_have_so_many_levels_and_no_more():
    def call(depth):
        nested = '{"a":' + "[" * (depth - 1) + "]" * (depth - 1) + "}"
        return nested, f'<tool_call>{{"name": "add", "arguments": {nested}}}</tool_call>'

    nested, text = call(MAX_DEPTH)
    assert read(STYLES[QWEN], [text]) == calls(("add", nested))
    _, text = call(MAX_DEPTH + 1)
    assert read(STYLES[QWEN], [text]) == calls(content=text)


@pytest.mark.parametrize("behind", ["", " ", "\n", " <|constrain|>json", "<|constrain|>json"])
def test_the_receiver_of_a_message_ends_where_its_word_does(behind):
    text = f'<|channel|>commentary to=functions.add{behind}<|message|>{{"x": 1}}<|call|>'
    assert read(style_of("<|channel|>analysis"), [text]) == calls(("add", '{"x": 1}'))


@pytest.mark.parametrize("number", ["1", "-", "1.", "1.5", "1e", "1e+", "1e+5", "0"])
def test_a_call_that_ends_in_a_number_ends_there(number):
    begin = f'<tool_call>{{"name": "add", "arguments": {{"text": "{"x" * HELD}", "n": {number}'
    message = read(STYLES[QWEN], begin)
    assert message == read(STYLES[QWEN], [begin])
    assert message.content == "" and message.calls[0].arguments.endswith(f'"n": {number}')


def test_a_long_call_is_handed_out_while_it_comes_and_stays_as_far_as_it_was_right():
    begin = '<tool_call>{"name": "add", "arguments": {"text": "' + "x" * HELD
    reader = STYLES[QWEN].reader("", tools=TOOLS)
    first, second, *_ = reader.feed(begin)
    assert (first.call.index, first.call.name, first.call.arguments) == (0, "add", "")
    assert second.call == type(second.call)(0, '{"text": "' + "x" * HELD)
    (more,) = reader.feed("yz")
    assert more.call.arguments == "yz"
    for text in (f'{begin}" oops', f'{begin}yz" oops'):
        message = read(STYLES[QWEN], [text])
        assert message == read(STYLES[QWEN], text)
        assert message.content == "oops"
        assert json.loads(message.calls[0].arguments + "}")


def test_the_first_delta_of_a_call_has_its_name_and_the_others_fragments():
    text = CASES[5][1]
    found = [delta.call for delta in deltas_of(STYLES[QWEN], text) if delta.call]
    for index, parts in itertools.groupby(found, lambda call: call.index):
        first, *rest = parts
        assert first.id.startswith("call_")
        assert (first.arguments, first.name) == ("", ["add", "look_up"][index])
        assert rest
        assert all((part.id, part.name) == (None, None) and part.arguments for part in rest)


def test_ids_are_what_templates_take():
    (call,) = join(deltas_of(STYLES[MISTRAL], ["[TOOL_CALLS]add{}"])).calls
    assert len(call.id) == 9
    assert call.id.isalnum()


def test_reasoning_that_the_prompt_has_opened():
    prompt = "<|im_start|>assistant\n<think>\n"
    message = read(STYLES[QWEN], ["\nHm</thi", "nk>\n", "\nYes"], prompt)
    assert message == calls(content="Yes", reasoning="Hm")
    assert read(STYLES[QWEN], ["cut"], prompt) == calls(reasoning="cut")
    closed = prompt + "\n</think>\n\n"
    assert read(STYLES[QWEN], ["Yes"], closed) == calls(content="Yes")


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("<think>\nHm.</think>\n\nYes.", "Hm.", "Yes."),
        (" \n[THINK]Hm.[/THINK]Yes.", "Hm.", "Yes."),
        ("<|channel|>analysis<|message|>Hm.<|end|>", "Hm.", ""),
        (" <thinking> is a tag", "", " <thinking> is a tag"),
        ("", "", ""),
    ],
)
def test_where_no_template_is_known_the_beginning_tells(text, reasoning, content):
    for pieces in ([text], text):
        reader = guessing_reader()
        deltas = [delta for piece in pieces for delta in reader.feed(piece)] + reader.finish()
        assert join(deltas) == AnswerMessage(content, reasoning)


def test_plain_answers_need_no_reader():
    assert style_of(None).reader("", tools=None) is None
    assert style_of(LLAMA).reader("", tools=None) is None
    assert style_of(LLAMA).reader("", tools=TOOLS, tool_choice="none") is None
    assert style_of(None).reader("", tools=TOOLS, tool_choice="auto") is None
    assert style_of(None).reader("", tools=TOOLS, tool_choice="required") is not None


def test_a_style_is_told_by_the_template_or_chosen():
    assert style_of("x [TOOL_CALLS] y").format.name == "mistral"
    assert style_of("<tool_call>\n<function=").format.name == "qwen3_coder"
    assert style_of("<tool_call>", "none").format is None
    assert style_of(None, "llama3").format.name == "llama3"
    assert style_of("</think>").thinks
    assert style_of(MISTRAL).params("x", TOOLS, None) == {"skip_special_tokens": False}
    assert style_of(MISTRAL).params("x", None, None) == {}
    with pytest.raises(UsageError, match="no tool call parser 'xml'") as raised:
        style_of(None, "xml")
    assert all(each.name in str(raised.value) for each in FORMATS)


def test_what_reads_reasoning_says_where_it_is_and_keeps_its_tags():
    style, words = style_of(QWEN), {"end": "</think>", "closing": "\n</think>\n\n"}
    free, bound = (
        style.params(prompt, TOOLS, None, most)["reasoning"]
        for prompt, most in (("x", None), ("x<think>\n", 7))
    )
    assert free == {"begin": "<think>", "max_tokens": None, **words}
    assert bound == {"begin": "", "max_tokens": 7, **words}
    assert style.params("x", TOOLS, None).keys() == {"reasoning"}
    for template, tag in ((QWEN, "</think>"), ("<|START_RESPONSE|>", "<|END_RESPONSE|>")):
        hidden = style_of(template, hidden_tags={tag}).params("x", None, None)
        assert hidden["skip_special_tokens"] is False
    with pytest.raises(RequestError, match="marks no reasoning"):
        style_of(MISTRAL).params("x", None, None, 7)


PARTS = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<think>"),
        *("</think>", '{"name": "add", "arguments": ', '{"name": "add", "parameters": ', "add"),
        *('{"a": 1}', "{}", "}", "{", "[", "]", ";", ",", '"', "\\", "\n", " ", "text", "é🙂"),
        *("x" * HELD, '{"text": "', '"}', '"name"', ":", "1.", "-", "tru"),
    ]
)


@settings(max_examples=150, deadline=None)
@given(
    style=st.sampled_from([QWEN, LLAMA, MISTRAL]),
    parts=st.lists(PARTS, max_size=12),
    inside=st.booleans(),
    data=st.data(),
)
@example(
    style=QWEN, parts=["<tool_call>", '{"name": "add", "arguments": '], inside=False, data=None
)
def test_no_cut_changes_what_is_read(style, parts, inside, data):
    text, prompt = "".join(parts), "<think>" if inside else ""
    whole = read(STYLES[style], [text], prompt)
    assert read(STYLES[style], text, prompt) == whole
    if data is not None and text:
        cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)))
        bounds = itertools.pairwise([0, *cuts, len(text)])
        assert read(STYLES[style], [text[a:b] for a, b in bounds], prompt) == whole


@pytest.mark.parametrize(
    "text", ["<" * 200_000, " " * 200_000, '<tool_call>{"name": "' + "\\u0061" * 50_000]
)
def test_long_hostile_text_is_text(text):
    assert read(STYLES[QWEN], [text]).content == text
