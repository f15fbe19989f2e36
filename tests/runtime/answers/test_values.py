"""Arguments in the notations of families become the JSON that they mean."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingot.runtime.answers import join, style_of
from ingot.runtime.answers.coming import MAX_DEPTH
from ingot.runtime.answers.schemas import kinds, parameter
from ingot.runtime.answers.values import MAX_NUMBER, value_of

SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "number": {"type": "number"},
        "ok": {"type": "boolean"},
        "list": {"type": "array"},
        "object": {"type": "object"},
        "nothing": {"type": "null"},
        "maybe": {"type": ["string", "null"]},
    },
}
TOOLS = [{"function": {"name": "f", "parameters": SCHEMA}}]

STRINGS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NUMBERS = st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False)
SCALARS = STRINGS | NUMBERS | st.booleans() | st.none()
KEYS = st.from_regex(r"[a-zA-Z_][\w]{0,8}", fullmatch=True)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3)
)
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "text": STRINGS,
        "number": NUMBERS,
        "ok": st.booleans(),
        "list": st.lists(VALUES, max_size=3),
        "object": st.dictionaries(KEYS, VALUES, max_size=3),
        "nothing": st.none(),
    },
)


def read(parser: str, text: str) -> Any:
    """The arguments of the one call of an answer, which comes character by character."""
    reader = style_of(None, parser).reader("", tools=TOOLS)
    deltas = [delta for char in text for delta in reader.feed(char)] + reader.finish()
    (call,) = join(deltas).calls
    return json.loads(call.arguments)


def plain(value: Any) -> str:
    """A value as templates print it between tags."""
    return value if isinstance(value, str) else json.dumps(value)


def gemma(value: Any) -> str:
    """A value as Gemma's template prints it."""
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{gemma(each)}' for key, each in value.items())}}}"
    if isinstance(value, list):
        return f"[{','.join(map(gemma, value))}]"
    return json.dumps(value)


@settings(max_examples=150, deadline=None)
@given(arguments=ARGUMENTS)
def test_arguments_are_those_that_were_written(arguments: dict[str, Any]):
    python = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    assert read("pythonic", f"[f({python})]") == arguments
    json_text = json.dumps(arguments, ensure_ascii=False)
    begin, end = "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>", "<|tool_call_end|>"
    assert read("kimi_k2", f"{begin}{json_text}{end}") == arguments
    assert read("gemma4", f"<|tool_call>call:f{gemma(arguments)}<tool_call|>") == arguments
    coder = "".join(f"<parameter={k}>\n{plain(v)}\n</parameter>\n" for k, v in arguments.items())
    text = f"<tool_call>\n<function=f>\n{coder}</function>\n</tool_call>"
    assert read("qwen3_coder", text) == arguments
    glm = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{plain(value)}</arg_value>\n"
        for key, value in arguments.items()
    )
    assert read("glm45", f"<tool_call>f\n{glm}</tool_call>") == arguments
    # Some templates print what is no string as Python does.
    seed = "".join(
        f"<parameter={key}>{value if isinstance(value, str) else repr(value)}</parameter>\n"
        for key, value in arguments.items()
    )
    text = f"<seed:tool_call>\n<function=f>\n{seed}</function>\n</seed:tool_call>"
    assert read("seed_oss", text) == arguments


@pytest.mark.parametrize(
    ("text", "found", "value"),
    [
        ("5", {"integer"}, 5),
        (" -5.0e1 ", {"number"}, -50.0),
        ("05", {"integer"}, "05"),
        ("five", {"integer"}, "five"),
        ("NaN", {"number"}, "NaN"),
        ("true", {"boolean"}, True),
        ("False", {"boolean"}, False),
        ("yes", {"boolean"}, "yes"),
        ("None", {"null", "integer"}, None),
        ('{"a": [1, "b"]}', {"object"}, {"a": [1, "b"]}),
        ("{'a': (1, None), 'b': \"c\"}", {"object"}, {"a": [1, None], "b": "c"}),
        ("{'a': 1", {"object"}, "{'a': 1"),
        ('"quoted"', set(), "quoted"),
        ("True", set(), "True"),
        ("[1]", set(), [1]),
        ("", set(), ""),
        ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), {"array"}, None),
        ("9" * 100_000, {"string"}, None),
    ],
)
def test_a_value_without_quotes(text: str, found: set[str], value: Any):
    written = value_of(text, frozenset(found))
    if value is None and len(text) > 100:
        assert written in (text, json.dumps(text))
    else:
        assert json.loads(written) == value


@pytest.mark.parametrize(
    ("name", "written", "value"),
    [
        ("maybe", "null", None),
        ("maybe", "None", None),
        ("maybe", "nullable", "nullable"),
        ("maybe", "5", "5"),
        ("text", "null", "null"),
    ],
)
def test_a_string_that_may_be_nothing(name: str, written: str, value: str | None):
    coder = f"<parameter={name}>\n{written}\n</parameter>\n"
    text = f"<tool_call>\n<function=f>\n{coder}</function>\n</tool_call>"
    assert read("qwen3_coder", text) == {name: value}
    text = f"<tool_call>f\n<arg_key>{name}</arg_key>\n<arg_value>{written}</arg_value>\n"
    assert read("glm45", f"{text}</tool_call>") == {name: value}


def test_a_quote_before_a_letter_is_no_end_of_a_string():
    assert read("pythonic", "[f(text='it's', list=['o'er', 'x'])]") == {
        "text": "it's",
        "list": ["o'er", "x"],
    }


def test_a_code_is_a_character_or_no_string():
    assert read("pythonic", r"[f(text='\U0001F642\u00e9\x41')]") == {"text": "🙂éA"}
    for text in (r"[f(text='\U00110000')]", r"[f(text='\uZZZZ')]"):
        reader = style_of(None, "pythonic").reader("", tools=TOOLS)
        assert join(reader.feed(text) + reader.finish()).content == text


def test_a_number_without_an_end_is_none():
    reader = style_of(None, "pythonic").reader("", tools=TOOLS)
    text = f"[f(number={'1' * (MAX_NUMBER + 1)})]"
    assert join(reader.feed(text) + reader.finish()).content != ""


def test_types_are_found_wherever_a_schema_says_them():
    root = {
        "$defs": {"Unit": {"enum": ["C", "F"]}, "Loop": {"$ref": "#/$defs/Loop"}},
        "properties": {"unit": {"$ref": "#/$defs/Unit"}},
    }
    for schema, wanted in [
        ({"type": "string"}, {"string"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, {"integer", "null"}),
        ({"allOf": [{"$ref": "#/$defs/Unit"}]}, {"string"}),
        ({"enum": ["a", 1, True, None]}, {"string", "number", "boolean", "null"}),
        ({"const": "a"}, {"string"}),
        (parameter(root, "unit"), {"string"}),
        ({"$ref": "#/$defs/Loop"}, set()),
        ({"$ref": "#/$defs/None"}, set()),
        ({"$ref": "http://example.org"}, set()),
        ({"type": 3, "enum": 4, "anyOf": 5, "$ref": 6}, set()),
        ({}, set()),
        (True, set()),
    ]:
        assert kinds(schema, root) == wanted, schema
    assert parameter({}, "x") == {}
    assert parameter({"properties": 3}, "x") == {}
