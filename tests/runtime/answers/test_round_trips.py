"""Calls that a chat template writes into an assistant's turn, and the same calls read from it.

`transformers` renders the templates.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from ingot.runtime.answers import join, style_of
from ingot.runtime.answers.formats import FORMATS
from tests.runtime import chat_templates
from tests.runtime.answers.call_templates import BEGIN, END, TEMPLATES
from tests.runtime.answers.corpus import TOOLS

Calls = tuple[tuple[str, dict[str, Any]], ...]

USER = {"role": "user", "content": "Go!"}
DEEP = {"list": [1, {"x": None}, []], "on": True, "half": -0.5, "what": "so"}
CASES: dict[str, Calls] = {
    "numbers": (("add", {"a": -12, "b": 2.5e-7}),),
    "optional arguments": (("look_up", {"q": "Rome"}),),
    "no arguments": (("ping", {}),),
    "parallel": (
        ("add", {"a": 1, "b": 2}),
        ("look_up", {"q": "Rome", "unit": "C"}),
        ("ping", {}),
        ("add", {"a": 3}),
    ),
    "truth and nothing": (("look_up", {"ok": False, "maybe": None}),),
    "a list": (("look_up", {"tags": ["a", "b, c", "", "[d]"], "ok": True}),),
    "nested": (("look_up", {"deep": DEEP, "tags": []}),),
    "unicode": (("look_up", {"q": "Zürich, 北京 🙂 ﷽", "tags": ["é", "日本"]}),),
    "strings like JSON": (
        ("look_up", {"q": "007"}),
        ("look_up", {"q": "true"}),
        ("look_up", {"q": "null"}),
        ("look_up", {"q": '{"a": 1}'}),
    ),
    "lines and tags": (("look_up", {"q": "a\n  b <b>c</b> {d} = (e), [f]"}),),
    "quotes": (("look_up", {"q": 'He said "it\'s" \\ fine', "deep": {"k": 'a "b"'}}),),
    "an empty string": (("look_up", {"q": ""}),),
}
# Templates that write a string as it is, between quotes that it may have itself.
AMBIGUOUS = {("lfm2", "quotes")}
ONE_CALL = {"harmony"}  # in a turn


def rendered(template: str, messages: list[dict[str, Any]], asks: bool, **variables: Any) -> str:
    """The text of a conversation; with `asks`, up to where the answer begins."""
    found = render_jinja_template(
        [messages], chat_template=template, add_generation_prompt=asks, **variables
    )
    return (found if isinstance(found, list) else found[0])[0]


def turn(name: str, calls: Calls) -> str:
    """The assistant's turn, cut out of the conversation that the template renders."""
    template = TEMPLATES[name]
    asked = [
        {"type": "function", "function": {"name": tool, "arguments": arguments}}
        for tool, arguments in calls
    ]
    message = {"role": "assistant", "tool_calls": asked}
    around = {"begin": BEGIN, "end": END, "nl": "\n", "tools": TOOLS}
    prompt = rendered(template, [USER], True, **around)
    whole = rendered(template, [USER, message], False, **around)
    assert whole.startswith(prompt) and whole.endswith(END)
    return whole[len(prompt) : -len(END)]


def read(name: str, pieces: Any) -> tuple[Calls, str]:
    reader = style_of("", name).reader("", tools=TOOLS)
    assert reader is not None
    message = join([delta for each in pieces for delta in reader.feed(each)] + reader.finish())
    assert len({call.id for call in message.calls}) == len(message.calls)
    calls = tuple((call.name, json.loads(call.arguments)) for call in message.calls)
    return calls, message.content


def test_every_format_has_a_template() -> None:
    assert {*TEMPLATES} == {each.name for each in FORMATS}


@pytest.mark.parametrize(
    ("name", "case"),
    [(name, case) for name in TEMPLATES for case in CASES if (name, case) not in AMBIGUOUS],
)
def test_the_calls_of_a_turn_are_those_that_were_written(name: str, case: str) -> None:
    for calls in [CASES[case]] if name not in ONE_CALL else [(each,) for each in CASES[case]]:
        text = turn(name, calls)
        for pieces in ([text], text):
            found, content = read(name, pieces)
            assert found == calls, text
            assert content.strip() == ""


# As templates want them that ask for all that a tool may say.
FULL_TOOLS = [
    {
        "type": "function",
        "function": {
            "description": "Does it.",
            "parameters": {"type": "object", "properties": {}},
            **tool["function"],
        },
    }
    for tool in TOOLS
]
WHOLE = {
    "HERMES": ("hermes", "<|im_end|>"),
    "HARMONY": ("harmony", ""),
    "MISTRAL_TOOLS": ("mistral", "</s>"),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", WHOLE)
def test_whole_templates_tell_their_style_and_write_what_is_read(name: str, case: str) -> None:
    """Of families whose templates other tests have, byte for byte as they publish them."""
    template, (wanted, end) = getattr(chat_templates, name), WHOLE[name]
    style = style_of(template)
    assert style.format is not None and style.format.name == wanted
    calls = CASES[case][:1] if wanted in ONE_CALL else CASES[case]
    asked = [
        {"id": f"callno{n:03}", "type": "function", "function": {"name": tool, "arguments": given}}
        for n, (tool, given) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": "", "tool_calls": asked}
    variables = {"tools": FULL_TOOLS, "bos_token": "<s>", "eos_token": "</s>"}
    prompt = rendered(template, [USER], True, **variables)
    whole = rendered(template, [USER, message], False, **variables)
    assert whole.startswith(prompt)
    text = whole[len(prompt) :].rstrip().removesuffix(end)
    reader = style.reader(prompt, tools=FULL_TOOLS)
    assert reader is not None
    answer = join(reader.feed(text) + reader.finish())
    assert tuple((call.name, json.loads(call.arguments)) for call in answer.calls) == calls, text
