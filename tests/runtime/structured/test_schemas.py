"""Outputs are valid against their schemas, as `jsonschema` judges."""

from __future__ import annotations

import json

import pytest

from ingot.errors import InternalError
from ingot.runtime.llm import LLM
from tests.runtime.structured.conftest import Write
from tests.runtime.structured.schemas import SCHEMAS
from tests.support.core import core
from tools.real.forms import ALL, Endings, Found, answers, faults

EACH, TOKENS = 20, 400
FEW = SCHEMAS[::9]


@pytest.mark.parametrize("schema", core(*FEW[-2:], further=FEW), ids=json.dumps)
def test_outputs_are_valid(write: Write, schema):
    for completion in write({"json": schema}, n=3):
        assert completion.finish_reason == "stop", completion.text
        assert faults(schema, completion.text) == []


@pytest.mark.slow
def test_two_thousand_outputs_are_valid(shakespeare: LLM):
    short = answers(shakespeare, SCHEMAS, EACH, 900)
    assert short == Found(ended=1000)
    found = answers(shakespeare, ALL[len(SCHEMAS) :], EACH, TOKENS)
    assert found.faults == []
    assert found.ended + found.cut == 1000
    assert found.ended >= 300 and found.brought >= 0.7 * found.cut


def test_outputs_that_are_cut_begin_what_is_valid(shakespeare: LLM):
    found = answers(shakespeare, ALL[::33], 2, 6)
    assert found.faults == []
    assert found.brought == found.cut >= 2


def test_the_judge_finds_faults():
    assert faults(SCHEMAS[0], "1")
    assert faults(SCHEMAS[0], "tru") == ["no JSON: Expecting value: line 1 column 1 (char 0)"]
    assert not faults(SCHEMAS[0], "true")


def test_what_was_cut_is_brought_to_an_end(shakespeare: LLM):
    tokenizer = shakespeare.get_tokenizer()
    endings = Endings(tokenizer)
    schema = {"type": "array", "items": {"type": "boolean"}}
    for begun in ("[", "[true", "[true, fal"):
        ended = endings.ended(schema, tokenizer.encode(begun, add_special_tokens=False))
        assert ended is not None and ended.startswith(begun) and faults(schema, ended) == []
    with pytest.raises(InternalError, match="does not follow"):
        endings.ended(schema, tokenizer.encode('{"a', add_special_tokens=False))
    begun = tokenizer.encode('"', add_special_tokens=False)
    assert endings.ended({"type": "string", "pattern": "^[^q]*q{9}$"}, begun) is None
