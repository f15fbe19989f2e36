"""Answers whose form a request asks for, over HTTP with the bundled model: schemas, grammars, calls
of tools, and characters of several tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from jsonschema import validate

from ingot.runtime.llm import LLM
from ingot.runtime.params import SamplingParams
from ingot.serve.http.app import build_app
from ingot.serve.local import LocalEngine
from tests.support.core import core
from tests.support.fake_engine import FakeModels
from tests.support.live_server import serving

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
GIVEN = {CHAT: {"messages": [{"role": "user", "content": "Hi"}]}, TEXT: {"prompt": "Hi"}}
SCHEMA = {
    "type": "object",
    "properties": {
        "unit": {"enum": ["C", "F"]},
        "days": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["unit", "days"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "bow", "parameters": {"maxProperties": 0}}},
]
WEATHER = {"type": "function", "function": {"name": "weather"}}
ANSWER = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
HALVES = "é☃🙂 naïve 日本語"  # all but a few letters take several tokens of the bundled model


@pytest.fixture(scope="module")
def llm(shakespeare_artifact: Path) -> Iterator[LLM]:
    with LLM(shakespeare_artifact, num_threads=1) as llm:
        yield llm


@pytest.fixture(scope="module")
def http(llm: LLM) -> Iterator[httpx.Client]:
    with (
        serving(lambda: build_app(FakeModels(bard=LocalEngine(llm)))) as address,
        httpx.Client(base_url=address, timeout=60) as client,
    ):
        yield client


def whole(http: httpx.Client, path: str = CHAT, **fields: Any) -> list[Any]:
    """The choices of an answer."""
    body = {**GIVEN[path], "seed": 1, "max_tokens": 200, **fields}
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    found: list[Any] = answer.json()["choices"]
    return found


def streamed(http: httpx.Client, path: str = CHAT, **fields: Any) -> list[list[Any]]:
    """What the chunks of a stream say of each choice."""
    body = {**GIVEN[path], "seed": 1, "max_tokens": 200, **fields, "stream": True}
    found: dict[int, list[Any]] = {}
    with http.stream("POST", path, json=body) as answer:
        *lines, done = [line for line in answer.iter_lines() if line]
    assert done == "data: [DONE]"
    for line in lines:
        for choice in json.loads(line.removeprefix("data: "))["choices"]:
            found.setdefault(choice["index"], []).append(choice)
    return [found[index] for index in sorted(found)]


def text_of(chunks: list[Any]) -> str:
    parts = (chunk.get("delta") or chunk for chunk in chunks)
    return "".join(part.get("content") or part.get("text") or "" for part in parts)


def calls_of(chunks: list[Any]) -> list[tuple[str, str]]:
    """The names and the arguments of the calls that chunks make."""
    found: list[list[str]] = []
    for part in (part for chunk in chunks for part in chunk["delta"].get("tool_calls", ())):
        if "id" in part:
            found.append([part["function"]["name"], ""])
        found[part["index"]][1] += part["function"]["arguments"]
    return [(name, arguments) for name, arguments in found]


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_no_chunk_has_half_a_character(path: str, http: httpx.Client, llm: LLM) -> None:
    form = {"structured_outputs": {"choice": [HALVES]}, "logprobs": 1 if path == TEXT else True}
    tokens = llm.get_tokenizer().encode(HALVES)
    assert any("\ufffd" in llm.get_tokenizer().decode([token]) for token in tokens)
    (choice,) = whole(http, path, **form)
    assert text_of([choice]) + choice.get("message", {}).get("content", "") == HALVES
    (chunks,) = streamed(http, path, **form)
    assert text_of(chunks) == HALVES
    assert not any("\ufffd" in text_of([chunk]) for chunk in chunks)


def test_bytes_of_tokens_make_the_characters_that_they_split(http: httpx.Client) -> None:
    form = {"structured_outputs": {"choice": [HALVES]}, "logprobs": True}
    (chunks,) = streamed(http, **form)
    scores = [each for chunk in chunks for each in (chunk["logprobs"] or {}).get("content", ())]
    assert b"".join(bytes(each["bytes"] or ()) for each in scores).decode() == HALVES
    (choice,) = whole(http, **form)
    assert choice["logprobs"]["content"] == scores


def test_a_schema_reaches_the_model(http: httpx.Client, llm: LLM) -> None:
    fields = {"response_format": ANSWER, "n": 4}
    choices = whole(http, **fields)
    texts = [choice["message"]["content"] for choice in choices]
    for text in texts:
        validate(json.loads(text), SCHEMA)
    assert {choice["finish_reason"] for choice in choices} == {"stop"}
    assert [text_of(chunks) for chunks in streamed(http, **fields)] == texts
    params = llm.get_default_sampling_params()
    params = SamplingParams(
        n=4, seed=1, max_tokens=200, temperature=params.temperature, top_p=params.top_p,
        structured_outputs={"json": SCHEMA},
    )  # fmt: skip
    (output,) = llm.generate([llm.chat_prompt(GIVEN[CHAT]["messages"])], params)
    assert [completion.text for completion in output.outputs] == texts
    (free,) = whole(http)
    assert not free["message"]["content"].startswith("{"), "a model that is not held does not"


FORMS: dict[str, tuple[dict[str, Any], str]] = {
    "regex": ({"regex": "[a-c]{4}-[0-9]{2}"}, "[a-c]{4}-[0-9]{2}"),
    "choice": ({"choice": ["aye", "nay"]}, "aye|nay"),
    "grammar": ({"grammar": 'start: "a" B+ "!"\nB: "b"{2}'}, "a(bb)+!"),
    "json": ({"json": {"type": "integer"}}, "-?[0-9]+"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("name", FORMS)
def test_structured_outputs_hold_answers(name: str, path: str, http: httpx.Client) -> None:
    form, pattern = FORMS[name]
    fields = {"structured_outputs": form, "n": 3}
    choices = whole(http, path, **fields)
    texts = [c["text"] if path == TEXT else c["message"]["content"] for c in choices]
    assert all(re.fullmatch(pattern, text) for text in texts), texts
    assert [text_of(chunks) for chunks in streamed(http, path, **fields)] == texts


@pytest.mark.thorough
def test_a_json_object_is_one(http: httpx.Client) -> None:
    (choice,) = whole(http, response_format={"type": "json_object"}, max_tokens=900)
    assert choice["finish_reason"] in ("stop", "length")
    if choice["finish_reason"] == "stop":
        assert isinstance(json.loads(choice["message"]["content"]), dict)
    assert choice["message"]["content"].startswith("{")


@pytest.mark.parametrize(
    "choice, names",
    core(("required", {"weather", "bow"}), further=[(WEATHER, {"weather"})]),
    ids=["required", "named"],
)
def test_calls_are_made_where_they_are_asked_for(
    choice: Any, names: set[str], http: httpx.Client
) -> None:
    fields = {"tools": TOOLS, "tool_choice": choice, "n": 4, "parallel_tool_calls": False}
    answers = whole(http, **fields)
    chunks = streamed(http, **fields)
    for answer, parts in zip(answers, chunks, strict=True):
        called = [
            (call["function"]["name"], call["function"]["arguments"])
            for call in answer["message"]["tool_calls"]
        ]
        assert called and {name for name, _ in called} <= names
        for name, arguments in called:
            validate(json.loads(arguments), SCHEMA if name == "weather" else {"maxProperties": 0})
        assert calls_of(parts) == called
        assert answer["finish_reason"] == parts[-1]["finish_reason"] == "tool_calls"
        assert answer["message"]["content"] is None and text_of(parts) == ""


@pytest.mark.thorough
def test_one_call_at_a_time_can_be_asked_for(http: httpx.Client) -> None:
    fields = {"tools": TOOLS, "tool_choice": "required", "n": 8}
    many = whole(http, **fields, max_tokens=400)
    assert any(len(each["message"]["tool_calls"]) > 1 for each in many)
    ones = whole(http, **fields, parallel_tool_calls=False)
    assert all(len(each["message"]["tool_calls"]) == 1 for each in ones)


@pytest.mark.thorough
def test_without_a_choice_tools_may_be_called_or_not(http: httpx.Client) -> None:
    """Also where the template ignores them."""
    (choice,) = whole(http, tools=TOOLS, max_tokens=8)
    assert choice["finish_reason"] in ("stop", "length", "tool_calls")
    (choice,) = whole(http, tools=TOOLS, tool_choice="none", max_tokens=8)
    assert "tool_calls" not in choice["message"] or not choice["message"]["tool_calls"]


MIXED: dict[str, dict[str, Any]] = {
    "stop strings": {"stop": [",", "\n", "the"], "n": 4, "temperature": 1.0},
    "scores and stop strings": {"stop": ["e"], "n": 3, "logprobs": True, "top_logprobs": 2},
    "token ids": {"return_token_ids": True, "n": 2, "max_tokens": 20},
    "penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "max_tokens": 30},
    "bias": {"logit_bias": {"300": 5.0}, "max_tokens": 12, "min_tokens": 4},
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", MIXED)
def test_a_stream_is_the_whole_answer_in_pieces(name: str, http: httpx.Client) -> None:
    answers = whole(http, **MIXED[name])
    for answer, chunks in zip(answers, streamed(http, **MIXED[name]), strict=True):
        assert text_of(chunks) == answer["message"]["content"]
        assert chunks[-1]["finish_reason"] == answer["finish_reason"]
        assert chunks[-1]["stop_reason"] == answer["stop_reason"]
        for field in ("logprobs", "token_ids"):
            key = "content" if field == "logprobs" else None
            told = [chunk[field] for chunk in chunks if chunk.get(field)]
            parts = [part for each in told for part in (each[key] if key else each)]
            wanted = answer.get(field)
            assert parts == ((wanted[key] if key else wanted) if wanted else [])
