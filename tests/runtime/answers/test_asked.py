"""The form that requests ask of answers: the model is held to it, and its calls are read back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import validate

from ingot.errors import GrammarError, RequestError
from ingot.runtime.answers import (
    AnswerMessage,
    Style,
    check_tools,
    join,
    structured_outputs,
    style_of,
)
from ingot.runtime.answers.asked import MAX_CALLS
from ingot.runtime.llm import LLM
from ingot.runtime.params import SamplingParams
from ingot.runtime.structured.compiler import GrammarCompiler
from ingot.runtime.structured.outputs import StructuredOutputsParams
from tests.support.core import core
from tests.support.fake_engine import bundled_tokenizer

TEMPLATES = {
    "hermes": "<tool_call>",
    "llama3": "<|python_tag|>",
    "mistral": "[TOOL_CALLS]",
    "none": "",
    "thinks": "<tool_call> </think>",
}
SCHEMA = {
    "type": "object",
    "properties": {
        "unit": {"enum": ["C", "F"]},
        "days": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["unit"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}},
    {
        "type": "function",
        "function": {"name": 'no "arguments"', "parameters": {"maxProperties": 0}},
    },
]
NAMED = {"type": "function", "function": {"name": "weather"}}
ANSWER = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}


@pytest.fixture(scope="module")
def shakespeare(shakespeare_artifact: Path) -> Iterator[LLM]:
    with LLM(shakespeare_artifact, num_threads=1) as llm:
        yield llm


def answers(llm: LLM, style: Style, prompt: str = "x", **asked: Any) -> list[AnswerMessage]:
    """Answers of the bundled model to a request, read as the server reads them."""
    form = structured_outputs(style, prompt, **asked)
    reading = {name: asked.get(name) for name in ("tools", "tool_choice")}
    params = SamplingParams(
        structured_outputs=form, n=4, seed=1, max_tokens=200, **style.params(prompt, **reading)
    )
    messages = []
    for completion in llm.generate(prompt, params, use_tqdm=False)[0].outputs:
        reader = style.reader(prompt, **reading)
        deltas = reader.feed(completion.text) + reader.finish() if reader else None
        messages.append(join(deltas) if deltas else AnswerMessage(completion.text))
    return messages


@pytest.mark.parametrize("name", core("hermes", further=["llama3", "mistral", "none"]))
def test_a_call_that_is_asked_for_comes(shakespeare: LLM, name):
    style = style_of(TEMPLATES[name])
    for message in answers(shakespeare, style, tools=TOOLS, tool_choice="required"):
        assert message.calls
        for call in message.calls:
            if call.name == "weather":
                validate(json.loads(call.arguments), SCHEMA)
            else:
                assert (call.name, json.loads(call.arguments)) == ('no "arguments"', {})


def test_the_tool_that_is_named_is_called_once(shakespeare: LLM):
    asked = {"tools": TOOLS, "tool_choice": NAMED, "parallel_tool_calls": False}
    for message in answers(shakespeare, style_of(TEMPLATES["hermes"]), **asked):
        (call,) = message.calls
        assert message.content == ""
        assert call.name == "weather"
        validate(json.loads(call.arguments), SCHEMA)


@pytest.mark.thorough
def test_an_answer_that_is_asked_for_may_be_a_call_where_there_are_tools(shakespeare: LLM):
    style = style_of(TEMPLATES["hermes"])
    asked = {"tools": TOOLS, "response_format": ANSWER, "parallel_tool_calls": False}
    for message in answers(shakespeare, style, **asked):
        if not message.calls:
            validate(json.loads(message.content), SCHEMA)


def test_the_form_begins_after_the_reasoning():
    style = style_of(TEMPLATES["thinks"])
    opened = structured_outputs(style, "<think>\n", response_format=ANSWER)
    before = structured_outputs(style, "x", response_format=ANSWER)
    text = 'Let me { think.\n</think>\n\n{"unit": "C"}'
    assert matches(opened, text) and not matches(opened, '{"unit": "C"}')
    assert matches(before, f"<think>\n{text}") and matches(before, '{"unit": "C"}')
    assert not matches(before, text)


def matches(form: dict[str, Any], text: str) -> bool:
    """Whether a text has the form."""
    from ingot.runtime.structured.compiler import GrammarCompiler
    from ingot.runtime.structured.guide import Guide
    from ingot.runtime.structured.outputs import StructuredOutputsParams
    from ingot.runtime.tokenizer import Tokenizer
    from tests.runtime.fake_tokenizer import byte_level

    tokenizer = Tokenizer(byte_level().to_str().encode())
    grammar = GrammarCompiler(lambda: tokenizer, 330, [319]).compile(
        StructuredOutputsParams(**form)
    )
    guide, tokens = Guide(grammar), tokenizer.encode(text, add_special_tokens=False)
    return guide.ends(tokens, 0) and guide.error is None


@pytest.mark.parametrize(("parallel", "most"), [(True, MAX_CALLS), (None, MAX_CALLS), (False, 1)])
def test_so_many_calls_are_asked_for_and_no_more(parallel, most):
    asked = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": parallel}
    form = structured_outputs(style_of(TEMPLATES["hermes"]), "x", **asked)
    call = '<tool_call>\n{"name": "weather", "arguments": {"unit": "C"}}\n</tool_call>'
    assert matches(form, "\n".join([call] * most))
    assert not matches(form, "\n".join([call] * (most + 1)))


def test_a_name_may_have_64_characters():
    check_tools([{"function": {"name": "x" * 64}}], None)


def test_plain_requests_ask_for_no_form():
    style = style_of(TEMPLATES["hermes"])
    assert structured_outputs(style, "x") is None
    assert structured_outputs(style, "x", tools=TOOLS, tool_choice="auto") is None
    assert structured_outputs(style, "x", tools=TOOLS, tool_choice="none") is None
    assert structured_outputs(style, "x", response_format={"type": "text"}) is None
    assert structured_outputs(style, "x", response_format={"type": "json_object"}) == {
        "json": {"type": "object"}
    }
    assert structured_outputs(style, "x", response_format=ANSWER) == {"json": SCHEMA}


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"tools": {}}, "tools is"),
        ({"tools": [1]}, r"tools\[0\] is 1"),
        ({"tools": [{"type": "code", "function": {}}]}, r"tools\[0\] is"),
        ({"tools": [{"function": {"name": ""}}]}, r"tools\[0\].function.name is"),
        ({"tools": [{"function": {"name": "x" * 65}}]}, r"tools\[0\].function.name is"),
        ({"tools": [{"function": {"name": "x", "parameters": 1}}]}, "parameters is 1"),
        ({"tools": [TOOLS[0]] * 2}, "tools has a name twice"),
        (
            {
                "tools": [{"function": {"name": "f", "parameters": {"x-guidance": 3}}}],
                "tool_choice": "required",
            },
            "x-guidance",
        ),
        ({"tools": TOOLS * 65}, "tools is"),
        ({"tool_choice": "required"}, "tool_choice is given without tools"),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice is 'any'"),
        ({"tools": TOOLS, "tool_choice": {"function": {"name": "x"}}}, "tool_choice is"),
        ({"tools": TOOLS, "tool_choice": {"function": 1}}, "tool_choice is"),
        ({"tools": TOOLS, "tool_choice": 7}, "tool_choice is 7"),
        ({"response_format": "json"}, "response_format.type is 'json'"),
        ({"response_format": {}}, "response_format.type is None"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema is"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": []}}},
            "response_format.json_schema.schema is",
        ),
    ],
)
def test_what_is_not_well_formed_is_named(asked, found):
    with pytest.raises(RequestError, match=found):
        structured_outputs(style_of(TEMPLATES["hermes"]), "x", **asked)


def test_a_schema_that_cannot_be_held_to_is_a_grammar_error(shakespeare: LLM):
    tools = [{"function": {"name": "f", "parameters": {"properties": {"a": {"not": {}}}}}}]
    with pytest.raises(GrammarError, match="not"):
        answers(shakespeare, style_of(None), tools=tools, tool_choice="required")


@pytest.mark.parametrize("asked", ["calls", "answers"])
def test_white_space_between_tokens_of_json_has_an_end(asked):
    """A small model would go on with it for ever."""
    fields = {"response_format": ANSWER}
    begin, most = "{", "\n" + 16 * " "
    if asked == "calls":
        fields = {"tools": TOOLS, "tool_choice": NAMED}
        begin, most = '<tool_call>\n{"name": "weather", "arguments": {', " "
    form = structured_outputs(style_of("<tool_call>"), "x", **fields)
    grammars = GrammarCompiler(bundled_tokenizer, 2048, [0])
    matcher = grammars.compile(StructuredOutputsParams.of(form)).matcher()

    def fits(text: str) -> bool:
        tokens = bundled_tokenizer().encode(text, add_special_tokens=False)
        return matcher.validate_tokens(tokens) == len(tokens)

    assert fits(begin + most + '"unit') and fits(begin + '"unit')
    assert not fits(begin + most + " ")
