"""What a request may ask for, before anything is compiled."""

from __future__ import annotations

import json

import pytest

from ingot.errors import GrammarError, RequestError
from ingot.runtime.params import SamplingParams
from ingot.runtime.structured.outputs import MAX_BYTES, MAX_DEPTH, StructuredOutputsParams


def nested(depth: int) -> dict:
    schema: dict = {"type": "null"}
    for _ in range(depth - 1):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, "none of its kinds"),
        ({"json_object": False}, "none of its kinds"),
        ({"regex": "a", "choice": ["b"]}, "regex and choice"),
        ({"json": 3}, "json is 3"),
        ({"json": "{"}, "json is no JSON"),
        ({"json": "[]"}, "json is"),
        ({"json": "[" * 100_000}, "json is no JSON"),
        ({"json": {"minimum": float("nan")}}, "json is no JSON"),
        ({"json": {"enum": [{1, 2}]}}, "json is no JSON"),
        ({"json": nested(MAX_DEPTH + 2)}, "nested more than 64 deep"),
        ({"json": nested(100_000)}, "nested more than 64 deep"),
        ({"json": {"const": "x" * MAX_BYTES}}, "json has 262156 bytes"),
        ({"regex": 3}, "regex is 3"),
        ({"regex": "x" * (MAX_BYTES + 1)}, "regex has 262145 bytes"),
        ({"regex": "\ud800"}, "lone surrogate"),
        ({"choice": []}, "choice is"),
        ({"choice": "yes"}, "choice is"),
        ({"choice": ["yes", 1]}, "choice is 1"),
        ({"choice": ["yes", ""]}, "empty text"),
        ({"choice": ["x" * MAX_BYTES, "y"]}, "choice has 262145 bytes"),
        ({"choice": ["x"] * 5000}, "choice is"),
        ({"grammar": b"start: x"}, "grammar is"),
        ({"json_object": 1}, "json_object is 1"),
        ({"json_object": True, "disable_any_whitespace": "no"}, "disable_any_whitespace is"),
        ({"jsn": {}}, "no field 'jsn'; 'json'"),
        ("json", "structured_outputs is 'json'"),
    ],
)
def test_what_is_refused(given, found):
    with pytest.raises(RequestError, match=found):
        SamplingParams(structured_outputs=given)


def test_a_schema_is_kept_as_text_however_it_is_given():
    schema = {"type": "string", "enum": ["é"]}
    asked = [
        StructuredOutputsParams(json=given) for given in (schema, json.dumps(schema, indent=1))
    ]
    assert asked[0] == asked[1]
    assert json.loads(asked[0].json) == schema
    assert StructuredOutputsParams.of({"json": nested(MAX_DEPTH)}) is not None


def test_a_dict_and_an_object_are_the_same_parameter():
    given = SamplingParams(structured_outputs={"choice": ["a", "b"]})
    assert given == SamplingParams(structured_outputs=StructuredOutputsParams(choice=("a", "b")))
    assert given.clone() == given
    assert SamplingParams().structured_outputs is None


def test_an_error_is_of_a_kind_of_its_own():
    with pytest.raises(GrammarError):
        SamplingParams(structured_outputs={"regex": 1})
    with pytest.raises(GrammarError):
        SamplingParams().structured_outputs = {}
