"""Tools, calls and results through chat templates that know nothing of them."""

from __future__ import annotations

import json
import logging
from functools import partial
from typing import Any

import pytest

from ingot.errors import RequestError
from ingot.runtime.answers import described, join, style_of
from ingot.runtime.answers.described import described_style, instructions, rendered, told
from ingot.runtime.chat import ChatTemplate
from tests.runtime.answers.corpus import TOOLS

TURNS = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role not in ('user', 'assistant') %}"
    "{{ raise_exception('roles are user and assistant') }}{% endif %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "[{{ m.role }}]{{ m.content | trim }}{% endfor %}"
)
LEAVES_SYSTEM_OUT = (
    "{% for m in messages if m.role != 'system' %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)
KNOWS_CALLS = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls or () %}"
    "<call>{{ c.function.name }}</call>{% endfor %}{% endfor %}"
)
ASKS = [{"role": "user", "content": "Sum?"}]
CALLS = [
    {"id": "a", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}},
    {"id": "b", "type": "function", "function": {"name": "look_up", "arguments": '{"q": "é"}'}},
]
CONVERSATION = [
    *ASKS,
    {"role": "assistant", "content": "I add.", "tool_calls": CALLS},
    {"role": "tool", "tool_call_id": "a", "content": "3"},
    {"role": "tool", "tool_call_id": "b", "content": [{"type": "text", "text": "é!"}]},
    {"role": "user", "content": "And?"},
]
IN_WORDS = [
    "Sum?",
    'I add.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>\n'
    '<tool_call>\n{"name": "look_up", "arguments": {"q": "é"}}\n</tool_call>',
    "<tool_response>\n3\n</tool_response>\n<tool_response>\né!\n</tool_response>\n\nAnd?",
]


@pytest.fixture(autouse=True)
def _nothing_was_noted() -> None:
    described._note.cache_clear()


def prompt(template: str, messages: Any, tools: Any = TOOLS) -> str:
    render = partial(ChatTemplate(template).render, add_generation_prompt=False)
    return rendered(render, messages, tools, template=template)


def test_tools_are_described_in_a_system_message() -> None:
    text = instructions(TOOLS)
    assert prompt(TURNS, ASKS) == f"[system]{text}[user]Sum?"
    system = [{"role": "system", "content": "Be brief."}, *ASKS]
    assert prompt(TURNS, system) == f"[system]Be brief.\n\n{text}[user]Sum?"
    for tool in TOOLS:
        assert json.dumps(tool) in text.splitlines()


@pytest.mark.parametrize("template", [NO_SYSTEM, LEAVES_SYSTEM_OUT])
def test_or_in_front_of_what_the_user_says_first(template: str) -> None:
    assert prompt(template, ASKS) == f"[user]{instructions(TOOLS)}\n\nSum?"
    parts = [{"role": "user", "content": [{"type": "text", "text": "Sum?"}]}]
    assert prompt(template, parts) == f"[user]{instructions(TOOLS)}\n\nSum?"


def test_calls_and_results_are_text_and_take_turns() -> None:
    assert [each["content"] for each in told(CONVERSATION)] == IN_WORDS
    assert [each["role"] for each in told(CONVERSATION)] == ["user", "assistant", "user"]
    first, second, third = IN_WORDS
    assert prompt(NO_SYSTEM, CONVERSATION) == (
        f"[user]{instructions(TOOLS)}\n\n{first}[assistant]{second}[user]{third}"
    )
    assert told(ASKS) is ASKS


def test_what_a_call_without_a_text_or_arguments_becomes() -> None:
    calls = [{"function": {"name": "ping", "arguments": given}} for given in (None, "", "{oops")]
    (message,) = told([{"role": "assistant", "content": None, "tool_calls": calls}])
    wanted = ["{}", "{}", "{oops"]
    assert message["content"] == "\n".join(
        f'<tool_call>\n{{"name": "ping", "arguments": {each}}}\n</tool_call>' for each in wanted
    )


@pytest.mark.parametrize("template", [TURNS, NO_SYSTEM])
def test_calls_of_a_request_without_tools_are_text_where_a_template_loses_them(
    template: str,
) -> None:
    first, second, third = IN_WORDS
    wanted = f"[user]{first}[assistant]{second}[user]{third}"
    assert prompt(template, CONVERSATION, None) == wanted


def test_a_template_that_knows_tools_or_calls_writes_them_itself() -> None:
    knows = "{{ tools }}" + KNOWS_CALLS
    text = prompt(knows, CONVERSATION)
    assert "<tool_call>" not in text and "<call>add</call>" in text and "'look_up'" in text
    text = prompt(KNOWS_CALLS, CONVERSATION, None)
    assert "<tool_call>" not in text and "<call>add</call>" in text and "[tool]3" in text
    # Of one that knows calls and no tools, what is told of both must agree.
    assert IN_WORDS[1] in prompt(KNOWS_CALLS, CONVERSATION)


def test_what_lets_nothing_through_is_refused() -> None:
    with pytest.raises(RequestError, match="ignores tools, and their description"):
        prompt("Hello!", ASKS)
    with pytest.raises(RequestError, match="always"):
        prompt("{{ raise_exception('always') }}", ASKS)


def test_the_calls_that_are_asked_for_are_read() -> None:
    style = style_of(TURNS)
    assert style.format is None
    text = prompt(TURNS, ASKS)
    assert described_style(style, "Sum?", TOOLS) == style
    assert described_style(style, text, None) == style
    reader = described_style(style, text, TOOLS).reader(text, tools=TOOLS)
    assert reader is not None
    answer = reader.feed(IN_WORDS[1]) + reader.finish()
    (first, second) = join(answer).calls
    assert (first.name, json.loads(first.arguments)) == ("add", {"a": 1})
    assert (second.name, json.loads(second.arguments)) == ("look_up", {"q": "é"})
    assert join(answer).content == "I add."


def test_a_note_is_logged_once_for_a_template(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for template in (TURNS, TURNS, NO_SYSTEM):
            prompt(template, ASKS)
        prompt("{{ tools }}" + TURNS, ASKS)
    assert [each.getMessage()[:32] for each in caplog.records] == [
        "the chat template ignores tools:"
    ] * 2


def test_a_template_that_refuses_tools_does_not_ignore_them() -> None:
    refuses = "{% if tools %}{{ raise_exception('tools come with a tag') }}{% endif %}" + TURNS
    with pytest.raises(RequestError, match="tools come with a tag"):
        prompt(refuses, ASKS)
    assert prompt(refuses, ASKS, tools=None) == "[user]Sum?"


def test_results_that_a_template_leaves_out_are_told_in_words() -> None:
    leaves_out = KNOWS_CALLS.replace("in messages", "in messages if m.role != 'tool'", 1)
    assert IN_WORDS[2] in prompt(leaves_out, CONVERSATION, None)
