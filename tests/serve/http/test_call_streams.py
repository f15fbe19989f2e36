"""Calls of tools and reasoning in chats, byte by byte in a stream, and as whole answers."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from ingot.runtime.tokenizer import Tokenizer
from ingot.serve.http.app import build_app
from tests.conftest import SHAKESPEARE
from tests.support.asgi import Call, called
from tests.support.fake_engine import FakeEngine, FakeModels, says

HERMES, LLAMA, MISTRAL = "<tool_call>", "<|python_tag|>", "[TOOL_CALLS]"
THINKS = "</think>"
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("look_up", "add")
]
FIRST, SECOND = '{"q": "a \\"b\\" é}"}', '{"x": 1}'
# An answer of each format: a sentence, a call with FIRST and one with SECOND.
CALLS = {
    HERMES: f'So.\n<tool_call>\n{{"name": "look_up", "arguments": {FIRST}}}\n</tool_call>\n'
    f'<tool_call>\n{{"name": "add", "arguments": {SECOND}}}\n</tool_call>',
    LLAMA: f'So.<|python_tag|>{{"name": "look_up", "parameters": {FIRST}}}; '
    f'{{"name": "add", "parameters": {SECOND}}}',
    MISTRAL: f'So.[TOOL_CALLS] [{{"name": "look_up", "arguments": {FIRST}}}, '
    f'{{"name": "add", "arguments": {SECOND}}}]',
}
CUTS = (1, 2, 7, 1000)  # characters of a token


def engine(marks: str, pieces: Sequence[str], reason: str = "stop") -> FakeEngine:
    """Says these pieces; its template has these marks."""
    config = json.loads((SHAKESPEARE / "tokenizer_config.json").read_text())
    # The template reads the tools, so that a request may bring some.
    config["chat_template"] = (
        "{% for m in messages %}{{ m.content }}{% endfor %}{{ tools }}" + marks
    )
    data = (SHAKESPEARE / "tokenizer.json").read_bytes()
    found = FakeEngine(says(*pieces, reason=reason))
    found.tokenizer = Tokenizer(data, config, vocab_size=2048)
    return found


def ask(marks: str, pieces: Sequence[str], reason: str = "stop", **fields: Any) -> Call:
    body = {"messages": [{"role": "user", "content": "Go!"}], "tools": TOOLS, **fields}
    app = build_app(FakeModels(bard=engine(marks, pieces, reason)))
    return asyncio.run(called(app, "POST", "/v1/chat/completions", body))


def cut(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def choices(call: Call) -> Iterator[Any]:
    """The choices of a stream's chunks."""
    assert call.status == 200, call.body
    *events, done, rest = call.body.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    for event in events:
        (choice,) = json.loads(event.removeprefix(b"data: "))["choices"]
        yield choice


def message(deltas: list[Any]) -> dict[str, Any]:
    """What a client that knows OpenAI's documentation makes of a stream."""
    found: dict[str, Any] = {"calls": []}
    for delta in deltas:
        for name in ("content", "reasoning", "reasoning_content"):
            if name in delta:
                found[name] = found.get(name, "") + delta[name]
        for part in delta.get("tool_calls", ()):
            if part["index"] == len(found["calls"]):
                assert part["type"] == "function" and part["function"]["arguments"] == ""
                found["calls"].append([part["id"], part["function"]["name"], ""])
            else:
                assert part.keys() == {"index", "function"}
                assert part["function"].keys() == {"arguments"}
                assert part["index"] == len(found["calls"]) - 1, "calls come one after the other"
            found["calls"][part["index"]][2] += part["function"]["arguments"]
    return found


def test_the_bytes_of_a_call() -> None:
    text = ask(HERMES, cut(CALLS[HERMES], 1000), stream=True).body.decode()
    first, second = re.findall(r'"id":"(call_\w+)"', text)
    assert first != second
    head = text[: text.index('"choices":')]

    def event(delta: str, end: str = '"finish_reason":null') -> str:
        inside = f'{{"index":0,"delta":{delta},"logprobs":null,{end}}}'
        return f'{head}"choices":[{inside}]}}\n\n'

    def begins(index: int, name: str, call_id: str) -> str:
        function = f'{{"name":"{name}","arguments":""}}'
        call = f'{{"index":{index},"id":"{call_id}","type":"function","function":{function}}}'
        return event(f'{{"tool_calls":[{call}]}}')

    def goes_on(index: int, arguments: str) -> str:
        function = f'{{"arguments":{json.dumps(arguments, ensure_ascii=False)}}}'
        return event(f'{{"tool_calls":[{{"index":{index},"function":{function}}}]}}')

    assert text == "".join(
        [
            event('{"role":"assistant","content":""}'),
            event('{"content":"So."}'),
            begins(0, "look_up", first),
            goes_on(0, FIRST),
            begins(1, "add", second),
            goes_on(1, SECOND),
            event("{}", '"finish_reason":"tool_calls","stop_reason":null'),
            "data: [DONE]\n\n",
        ]
    )


@pytest.mark.parametrize("size", CUTS)
@pytest.mark.parametrize("marks", CALLS)
def test_a_stream_of_calls_makes_the_whole_message(marks: str, size: int) -> None:
    pieces = cut(CALLS[marks], size)
    found = list(choices(ask(marks, pieces, stream=True)))
    streamed = message([choice["delta"] for choice in found])
    assert [call[1:] for call in streamed["calls"]] == [["look_up", FIRST], ["add", SECOND]]
    assert streamed["content"] == "So."
    assert [choice["finish_reason"] for choice in found[:-1]] == [None] * (len(found) - 1)
    assert (found[-1]["delta"], found[-1]["finish_reason"]) == ({}, "tool_calls")
    (whole,) = ask(marks, pieces).json()["choices"]
    assert whole["finish_reason"] == "tool_calls" and whole["message"]["content"] == "So."
    calls = [(each["type"], each["function"]) for each in whole["message"]["tool_calls"]]
    assert calls == [
        ("function", {"name": name, "arguments": arguments})
        for _, name, arguments in streamed["calls"]
    ]


@pytest.mark.parametrize("marks", CALLS)
def test_ids_of_calls_never_repeat(marks: str) -> None:
    bodies = [ask(marks, [CALLS[marks]], stream=stream).body for stream in (True, False) * 8]
    ids = [each for body in bodies for each in re.findall(rb'"id":"(\w+)","type"', body)]
    assert len(ids) == len({*ids}) == 2 * len(bodies)
    # Mistral's templates take ids of nine letters and digits alone.
    assert all(len(each) == 9 if marks == MISTRAL else each.startswith(b"call_") for each in ids)


def test_long_arguments_come_in_fragments() -> None:
    arguments = json.dumps({"text": "line\n" * 400})
    text = f'<tool_call>{{"name": "add", "arguments": {arguments}}}</tool_call>'
    found = list(choices(ask(HERMES, cut(text, 5), stream=True)))
    parts = [part for choice in found for part in choice["delta"].get("tool_calls", ())]
    assert len(parts) > 100
    assert message([choice["delta"] for choice in found])["calls"][0][1:] == ["add", arguments]


@pytest.mark.parametrize("size", CUTS)
def test_reasoning_has_both_names_and_can_be_left_out(size: int) -> None:
    pieces = cut("<think>\nHm, é.\n</think>\n\nYes.", size)
    asked: dict[str, Any] = {"tools": None}
    found = list(choices(ask(THINKS, pieces, stream=True, **asked)))
    assert message([choice["delta"] for choice in found]) == {
        "calls": [], "content": "Yes.", "reasoning": "Hm, é.", "reasoning_content": "Hm, é.",
    }  # fmt: skip
    assert found[-1]["finish_reason"] == "stop"
    (whole,) = ask(THINKS, pieces, **asked).json()["choices"]
    told = {"content": "Yes.", "reasoning": "Hm, é.", "reasoning_content": "Hm, é."}
    assert whole["message"].items() >= told.items()
    hidden = ask(THINKS, pieces, stream=True, include_reasoning=False, **asked)
    assert message([choice["delta"] for choice in choices(hidden)]) == {
        "calls": [], "content": "Yes.",
    }  # fmt: skip
    (whole,) = ask(THINKS, pieces, include_reasoning=False, **asked).json()["choices"]
    assert whole["message"]["content"] == "Yes." and "Hm" not in str(whole)


def test_an_answer_that_is_cut_off_in_a_call_ends_with_its_length() -> None:
    text = '<tool_call>{"name": "add", "arguments": {"x":'
    found = list(choices(ask(HERMES, [text], "length", stream=True)))
    assert (found[-1]["delta"], found[-1]["finish_reason"]) == ({}, "length")
    # One that was handed out has no end: whoever makes it needs to know.
    text = f'<tool_call>{{"name": "add", "arguments": {{"x": "{"y" * 999}'
    found = list(choices(ask(HERMES, cut(text, 50), "length", stream=True)))
    assert message([choice["delta"] for choice in found])["calls"]
    assert (found[-1]["delta"], found[-1]["finish_reason"]) == ({}, "length")


def test_calls_are_read_where_the_template_ignores_tools() -> None:
    """In the form that their description asks for."""
    plain = engine("", [CALLS[HERMES]], "stop")
    plain.tokenizer = Tokenizer(
        (SHAKESPEARE / "tokenizer.json").read_bytes(),
        {"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"},
        vocab_size=2048,
    )
    body = {"messages": [{"role": "user", "content": "Go!"}], "tools": TOOLS}
    app = build_app(FakeModels(bard=plain))
    call = asyncio.run(called(app, "POST", "/v1/chat/completions", body))
    (choice,) = call.json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    found = list(choices(ask(HERMES, [CALLS[HERMES]], stream=True)))
    wanted = message([each["delta"] for each in found])["calls"]
    names = [each["function"]["name"] for each in choice["message"]["tool_calls"]]
    assert names and len(names) == len(wanted)


def test_a_call_of_what_is_no_tool_is_text() -> None:
    text = '<tool_call>{"name": "nothing", "arguments": {}}</tool_call>'
    found = list(choices(ask(HERMES, [text], stream=True)))
    assert message([choice["delta"] for choice in found]) == {"calls": [], "content": text}
    assert found[-1]["finish_reason"] == "stop"


def test_a_call_alone_has_no_content() -> None:
    text = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    (choice,) = ask(HERMES, [text]).json()["choices"]
    assert choice["message"]["content"] is None and choice["message"]["tool_calls"]


def test_without_tools_calls_are_text() -> None:
    for fields in ({"tools": None}, {"tool_choice": "none"}):
        found = list(choices(ask(HERMES, [CALLS[HERMES]], stream=True, **fields)))
        assert message([choice["delta"] for choice in found])["content"] == CALLS[HERMES]


@pytest.mark.parametrize(
    "deltas",
    [
        [{"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}],
        [{"tool_calls": [{"index": 0, "id": "a", "type": "function",
                          "function": {"name": "f", "arguments": "{"}}]}],
    ],
)  # fmt: skip
def test_a_reader_of_the_documentation_sees_what_is_wrong(deltas: list[Any]) -> None:
    with pytest.raises((AssertionError, KeyError)):
        message(deltas)
