"""Outputs are valid against their schemas, as `jsonschema` judges."""

from __future__ import annotations

import json

import pytest
from jsonschema import Draft202012Validator

from ingot.runtime.llm import LLM
from ingot.runtime.params import SamplingParams
from tests.runtime.structured.conftest import PROMPT, Write
from tests.runtime.structured.schemas import SCHEMAS
from tests.support.core import core

RUNS = 20
FEW = SCHEMAS[::9]


def faults(schema, text: str) -> list[str]:
    """What is wrong with a text by an independent validator."""
    judge = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    return [error.message for error in judge.iter_errors(json.loads(text))]


@pytest.mark.parametrize("schema", core(*FEW[-2:], further=FEW), ids=json.dumps)
def test_outputs_are_valid(write: Write, schema):
    for completion in write({"json": schema}, n=3):
        assert completion.finish_reason == "stop", completion.text
        assert faults(schema, completion.text) == []


@pytest.mark.slow
def test_a_thousand_outputs_are_valid(shakespeare: LLM):
    asked = [
        SamplingParams(structured_outputs={"json": schema}, n=RUNS, seed=seed, max_tokens=900)
        for seed, schema in enumerate(SCHEMAS)
    ]
    outputs = shakespeare.generate([PROMPT] * len(asked), asked, use_tqdm=False)
    count = 0
    for schema, output in zip(SCHEMAS, outputs, strict=True):
        for completion in output.outputs:
            assert completion.finish_reason == "stop", completion.text
            assert faults(schema, completion.text) == [], completion.text
            count += 1
    assert count == 1000


def test_the_judge_finds_faults():
    assert faults(SCHEMAS[0], "1")
    assert not faults(SCHEMAS[0], "true")
