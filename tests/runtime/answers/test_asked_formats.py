"""Calls that are asked for, in the format of each family: the model is held to it, and its calls
are read back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import validate
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from ingot.runtime.answers import Style, join, structured_outputs, style_of
from ingot.runtime.answers.formats import FORMATS
from ingot.runtime.answers.thoughts import THOUGHTS
from ingot.runtime.llm import LLM
from ingot.runtime.params import SamplingParams
from ingot.runtime.structured.compiler import GrammarCompiler
from ingot.runtime.structured.outputs import StructuredOutputsParams
from ingot.runtime.tokenizer import Tokenizer
from tests.runtime.answers import templates
from tests.runtime.fake_tokenizer import byte_level
from tests.support.core import core

END = 319
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 0, "maximum": 9},
        "unit": {"enum": ["C", "F"]},
        "now": {"type": "boolean"},
    },
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "ping"}},
]
ARGUMENTS = {"city": 'Rome "é"', "days": 3, "unit": "C", "now": True}
JSON = '{"city": "Rome \\"é\\"", "days": 3, "unit": "C", "now": true}'
PYTHON = 'city="Rome \\"é\\"", days=3, unit="C", now=True'
OBJECT = f'{{"name": "weather", "arguments": {JSON}}}'
LLAMA = f'{{"name": "weather", "parameters": {JSON}}}'


def gemma(quote: str) -> str:
    city = f'{quote}Rome "é"{quote}'
    return f"call:weather{{city:{city},days:3,unit:{quote}C{quote},now:true}}"


def tagged(begin: str, middle: str, end: str) -> str:
    values = {"city": 'Rome "é"', "days": "3", "unit": "C", "now": "true"}
    return "".join(f"{begin}{key}{middle}{value}{end}\n" for key, value in values.items())


PARAMETER = tagged("<parameter=", ">\n", "\n</parameter>")
# A call of each format as its family writes it.
CALLS = {
    "harmony": f"<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{JSON}",
    "deepseek_v31": f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{JSON}"
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n"
    f"```json\n{JSON}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek_v32": '<｜DSML｜function_calls>\n<｜DSML｜invoke name="weather">\n'
    + tagged('<｜DSML｜parameter name="', '" string="false">', "</｜DSML｜parameter>")
    .replace('city" string="false', 'city" string="true')
    .replace('unit" string="false', 'unit" string="true')
    + "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
    f"<|tool_call_argument_begin|>{JSON}<|tool_call_end|><|tool_calls_section_end|>",
    "minimax_m2": '<minimax:tool_call>\n<invoke name="weather">\n'
    + tagged('<parameter name="', '">', "</parameter>")
    + "</invoke>\n</minimax:tool_call>",
    "seed_oss": "<seed:tool_call>\n<function=weather>\n"
    + tagged("<parameter=", ">", "</parameter>")
    + "</function>\n</seed:tool_call>",
    "command_r7b": '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "weather", '
    f'"parameters": {JSON}}}\n]<|END_ACTION|>',
    "command_r": f'Action: ```json\n[\n    {{"tool_name": "weather", "parameters": {JSON}}}\n]```',
    "mistral_v11": f"[TOOL_CALLS]weather[ARGS]{JSON}",
    "mistral": f"[TOOL_CALLS] [{OBJECT}]",
    "lfm2": f"<|tool_call_start|>[weather({PYTHON})]<|tool_call_end|>",
    "phi4_mini": f"<|tool_call|>[{OBJECT}]<|/tool_call|>",
    "granite": f"<|tool_call|>[{OBJECT}]",
    "nemotron": f"<TOOLCALL>[{OBJECT}]</TOOLCALL>",
    "hunyuan": f"<tool_calls>[{OBJECT}]</tool_calls>",
    "minimax_m1": f"<tool_calls>\n{OBJECT}\n</tool_calls>",
    "glm45": "<tool_call>weather\n"
    + tagged("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>")
    + "</tool_call>",
    "qwen3_coder": f"<tool_call>\n<function=weather>\n{PARAMETER}</function>\n</tool_call>",
    "hermes": f"<tool_call>\n{OBJECT}\n</tool_call>",
    "pythonic": f"[weather({PYTHON})]",
    "llama4": LLAMA,
    "llama3": LLAMA,
    "xlam": f"[{OBJECT}]",
}
CALLS["gemma4"] = "<|tool_call>" + gemma('<|"|>') + "<tool_call|>"
CALLS["functiongemma"] = "<start_function_call>" + gemma("<escape>") + "<end_function_call>"
NO_CITY = {
    name: text.replace(part, "", 1)
    for name, text in CALLS.items()
    for part in (
        '"city": "Rome \\"é\\"", ', 'city="Rome \\"é\\"", ', 'city:<|"|>Rome "é"<|"|>,',
        'city:<escape>Rome "é"<escape>,', '<parameter=city>\nRome "é"\n</parameter>\n',
        '<parameter=city>Rome "é"</parameter>\n', '<parameter name="city">Rome "é"</parameter>\n',
        '<｜DSML｜parameter name="city" string="true">Rome "é"</｜DSML｜parameter>\n',
        '<arg_key>city</arg_key>\n<arg_value>Rome "é"</arg_value>\n',
    )
    if part in text
}  # fmt: skip
names = pytest.mark.parametrize("name", [row.name for row in FORMATS])


def style(name: str, tags: Mapping[str, int] | None = None) -> Style:
    return style_of(None, name, tags or {})


@cache
def tokenizer(tags: tuple[str, ...] = ()) -> Tokenizer:
    backend = Backend.from_str(byte_level().to_str())
    backend.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in tags])
    return Tokenizer(backend.to_str().encode())


def takes(form: Any, text: str, tags: tuple[str, ...] = ()) -> bool:
    """Whether a text has the form, and may end there."""
    ours = tokenizer(tags)
    size = max(330, ours.backend.get_vocab_size())
    grammar = GrammarCompiler(lambda: ours, size, [END]).compile(StructuredOutputsParams(**form))
    matcher = grammar.matcher()
    taken = matcher.consume_tokens(ours.encode(text, add_special_tokens=False))
    return taken and matcher.is_accepting()


def test_every_format_has_a_call():
    assert set(CALLS) == set(NO_CITY) == {row.name for row in FORMATS}


@names
@pytest.mark.parametrize("choice", ["required", {"function": {"name": "weather"}}])
def test_a_call_is_written_as_the_family_writes_it(name: str, choice: Any):
    form = structured_outputs(style(name), "x", tools=TOOLS, tool_choice=choice)
    text = CALLS[name]
    assert takes(form, text)
    assert not takes(form, NO_CITY[name])
    assert not takes(form, text.replace("weather", "whether"))
    assert not takes(form, "It is warm.")
    for wrong in ("\n33\n", ">33<", ": 33", "=33", ":33"):
        right = wrong.replace("33", "3")
        assert right not in text or not takes(form, text.replace(right, wrong))


@names
def test_an_answer_or_a_call_may_come_where_both_are_asked_for(name: str):
    schema = {"type": "object", "properties": {"name": {"type": "string"}, "city": {}}}
    answer = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    asked = style(name)
    form = structured_outputs(asked, "x", tools=TOOLS, response_format=answer)
    assert takes(form, CALLS[name])
    lead = asked.thought.lead if asked.thought else ""
    for text in ('{"city": 1}', '{"name": "Rome"}', '{"name": "weather"}', "{}"):
        assert takes(form, f"{lead}{text}"), text
    assert not takes(form, f"{lead}Rome")


@names
def test_what_is_written_is_read(name: str):
    reader = style(name).reader("x", tools=TOOLS, tool_choice="required")
    message = join(reader.feed(CALLS[name]) + reader.finish())
    (call,) = message.calls
    assert (call.name, json.loads(call.arguments), message.content) == ("weather", ARGUMENTS, "")


@names
def test_tags_that_are_tokens_are_these_tokens(name: str):
    # Brackets alone make no tag of a grammar.
    row = style(name).format
    tags = tuple({tag for tag in row.tags() if tag.startswith("<") and tag.endswith(">")})
    ours = tokenizer(tags)
    form = structured_outputs(style(name, ours.tags), "x", tools=TOOLS, tool_choice="required")
    assert takes(form, CALLS[name], tags)


@names
def test_several_calls_may_be_asked_for_or_one(name: str):
    row = style(name).format
    asked = {"tools": TOOLS[:1], "tool_choice": "required"}
    one = CALLS[name][len(row.begin) : len(CALLS[name]) - len(row.end)]
    two = f"{row.begin}{one}{row.middle}{one}{row.end}"
    several = structured_outputs(style(name), "x", **asked)
    single = structured_outputs(style(name), "x", parallel_tool_calls=False, **asked)
    assert takes(several, two) == bool(row.middle)
    assert takes(single, CALLS[name]) and not takes(single, two)


@names
def test_arguments_may_be_left_out_and_stand_in_order(name: str):
    """A tool without any, and one whose arguments all are optional."""
    form = structured_outputs(style(name), "x", tools=TOOLS[1:], tool_choice="required")
    assert form is not None
    tools = [
        {
            "function": {
                "name": "f",
                "parameters": {"properties": {"a": {"type": "integer"}, "b": {"type": "null"}}},
            }
        }
    ]
    row = style(name).format
    form = structured_outputs(style(name), "x", tools=tools, tool_choice="required")
    for text in BARE.get(row.name, ()):
        assert takes(form, text), text


@pytest.mark.parametrize("name", ["qwen3_coder", "glm45", "gemma4", "pythonic"])
def test_words_that_a_schema_lists_are_held_to(name: str):
    """Listed here or where a reference leads; a word may be empty or look like a number."""
    parameters = {
        "$defs": {
            "Unit": {"type": "string", "enum": ["", "C", "5"]},
            "Loop": {"$ref": "#/$defs/Loop"},
        },
        "properties": {
            "unit": {"$ref": "#/$defs/Unit"},
            "odd": {"type": "string", "enum": [1, "a"]},
        },
        "required": ["unit", "odd"],
    }
    tools = [{"function": {"name": "f", "parameters": parameters}}]
    form = structured_outputs(style(name), "x", tools=tools, tool_choice="required")
    for unit, odd in (("", "a"), ("C", "a"), ("5", "a"), ("F", "a"), ("C", "1")):
        text = WORDS[name].format(unit=unit, odd=odd)
        assert takes(form, text) == (unit != "F" and odd == "a"), text
        reader = style(name).reader("x", tools=tools)
        (call,) = join(reader.feed(text) + reader.finish()).calls
        assert json.loads(call.arguments) == {"unit": unit, "odd": odd}


WORDS = {
    "qwen3_coder": "<tool_call>\n<function=f>\n<parameter=unit>\n{unit}\n</parameter>\n"
    "<parameter=odd>\n{odd}\n</parameter>\n</function>\n</tool_call>",
    "glm45": "<tool_call>f\n<arg_key>unit</arg_key>\n<arg_value>{unit}</arg_value>\n"
    "<arg_key>odd</arg_key>\n<arg_value>{odd}</arg_value>\n</tool_call>",
    "gemma4": '<|tool_call>call:f{{unit:<|"|>{unit}<|"|>,odd:<|"|>{odd}<|"|>}}<tool_call|>',
    "pythonic": '[f(unit="{unit}", odd="{odd}")]',
}
BARE = {
    "pythonic": ("[f()]", "[f(a=1)]", "[f(b=null)]", "[f(a=1, b=null)]"),
    "lfm2": ("<|tool_call_start|>[f(b=null)]<|tool_call_end|>",),
    "gemma4": ("<|tool_call>call:f{}<tool_call|>", "<|tool_call>call:f{b:null}<tool_call|>"),
    "glm45": (
        "<tool_call>f\n</tool_call>",
        "<tool_call>f\n<arg_key>b</arg_key>\n<arg_value>null</arg_value>\n</tool_call>",
    ),
    "qwen3_coder": ("<tool_call>\n<function=f>\n</function>\n</tool_call>",),
}


@pytest.mark.parametrize("row", THOUGHTS, ids=lambda row: row.name)
def test_the_form_begins_after_the_reasoning(row):
    asked = style_of(templates.THOUGHTS[row.name][0])
    answer = {"type": "json_schema", "json_schema": {"name": "x", "schema": WEATHER}}
    for prompt, begin in (("x", row.begin), (f"x{row.begin}", "")):
        form = structured_outputs(asked, prompt, response_format=answer)
        text = f"{begin}Hm. {{{row.end}{row.turn}{row.lead}{JSON}"
        assert takes(form, text)
        assert takes(form, f"{row.lead}{JSON}") == bool(begin)
        assert not takes(form, f"{row.lead}[]")
        tags = tuple(tag for tag in {row.begin, row.end} if tag.startswith("<") and tag[-1] == ">")
        whole = style_of(templates.THOUGHTS[row.name][0], "auto", tokenizer(tags).tags)
        assert takes(structured_outputs(whole, prompt, response_format=answer), text, tags)


def test_an_answer_may_stand_in_the_tags_of_its_family():
    asked = style_of(templates.SHELLS["<response>"][0])
    answer = {"type": "json_schema", "json_schema": {"name": "x", "schema": WEATHER}}
    form = structured_outputs(asked, "x", response_format=answer)
    # Without tools or reasoning the schema alone is the form: the tags may be left out.
    assert takes(form, JSON)
    both = style_of(templates.TEMPLATES["ernie"])
    form = structured_outputs(both, "x", response_format=answer)
    for text in (JSON, f"<response>\n{JSON}\n</response>", f"<think>a</think>\n{JSON}"):
        assert takes(form, text)


FEW = {
    "type": "object",
    "properties": {"days": WEATHER["properties"]["days"], "unit": {"enum": ["C", "F"]},
                   "now": {"type": "boolean"}},
    "required": ["unit"],
    "additionalProperties": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def shakespeare(shakespeare_artifact: Path) -> Iterator[LLM]:
    with LLM(shakespeare_artifact, num_threads=1) as llm:
        yield llm


@pytest.mark.parametrize(
    "name",
    core("qwen3_coder", "pythonic", "gemma4", further=[
        row.name for row in FORMATS if not row.thought  # a small model would think for ever
    ]),
)  # fmt: skip
def test_a_model_is_held_to_the_format(shakespeare: LLM, name: str):
    tools = [{"function": {"name": "few", "parameters": FEW}}]
    asked = {"tools": tools, "tool_choice": "required"}
    form = structured_outputs(style(name), "x", parallel_tool_calls=False, **asked)
    wanted = style(name).params("x", **asked)
    params = SamplingParams(structured_outputs=form, n=3, seed=1, max_tokens=250, **wanted)
    for completion in shakespeare.generate("x", params, use_tqdm=False)[0].outputs:
        assert completion.finish_reason == "stop"
        reader = style(name).reader("x", **asked)
        message = join(reader.feed(completion.text) + reader.finish())
        (call,) = message.calls
        assert (call.name, message.content) == ("few", "")
        validate(json.loads(call.arguments), FEW)
