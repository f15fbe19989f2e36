"""Completions of the bundled model that are held to a form."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ingot.errors import GrammarError, InternalError, RequestError
from ingot.runtime.config import EngineConfig
from ingot.runtime.devices.sampler import Sampler
from ingot.runtime.llm import LLM
from ingot.runtime.params import SamplingParams
from ingot.runtime.structured.guide import Allowed, Vocabulary
from tests.runtime.structured.conftest import PROMPT, Write
from tests.support.core import core

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "maximum": 99, "minimum": 0},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
REGEXES = (
    r"[A-Z][a-z]{2,8} [0-9]{3,4}",
    r"^(thou|thee)( (art|hast) [a-z]{1,6}){1,3}\.$",
    r"\d{1,3}(\.\d{2})?",
    r"[^aeiou\n]{4,12}",
    r"(?i:king|queen) [IVX]{1,4}",
    r"[\u00e0-\u00ff]{2}🙂",
)
CHOICES = ["yes", "no", "maybe not", "may", "🙂", 'a "quoted" one\n']


@pytest.mark.cases(core=1)
@pytest.mark.parametrize("regex", core(*REGEXES[:2], further=REGEXES))
def test_a_regex_is_matched_whole(write: Write, regex):
    for completion in write({"regex": regex}, n=5):
        assert completion.finish_reason == "stop"
        assert re.fullmatch(regex, completion.text), completion.text


def test_a_choice_is_exact(write: Write):
    texts = [each.text for each in write({"choice": CHOICES}, n=40, temperature=3)]
    assert set(texts) <= set(CHOICES)
    assert len(set(texts)) > 2


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= "say " word ("," word)*\nword ::= [a-c] [a-c]',
        'start: "say " W ("," W)*\nW: /[a-c]{2}/',
    ],
)
def test_a_grammar_is_followed(write: Write, grammar):
    for completion in write({"grammar": grammar}, n=5, max_tokens=60):
        assert re.fullmatch("say [a-c]{2}(,[a-c]{2})*(,[a-c]?)?", completion.text)
        if completion.finish_reason == "stop":
            assert re.fullmatch("say [a-c]{2}(,[a-c]{2})*", completion.text)


@pytest.mark.thorough
def test_any_object(write: Write):
    done = [c for c in write({"json_object": True}, n=8) if c.finish_reason == "stop"]
    assert done
    assert all(isinstance(json.loads(completion.text), dict) for completion in done)


@pytest.mark.thorough
def test_white_space_is_what_was_asked_for(write: Write):
    schema = {"json": PERSON}
    compact = write({**schema, "disable_any_whitespace": True})[0].text
    assert compact == json.dumps(json.loads(compact), separators=(",", ":"), ensure_ascii=False)
    tabs = write({**schema, "whitespace_pattern": r"\t"})[0].text
    assert json.loads(tabs) and "\t" in tabs and " :" not in tabs


@pytest.mark.thorough
def test_objects_can_be_closed(write: Write):
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}}
    for completion in write({"json": schema, "disable_additional_properties": True}, n=8):
        assert set(json.loads(completion.text)) <= {"a"}


def test_log_probabilities_are_the_models_own(write: Write, shakespeare: LLM):
    (held,) = write({"choice": ["Romeo"]}, logprobs=0)
    free = shakespeare.logits(shakespeare.get_tokenizer().encode(PROMPT) + held.token_ids)
    row = free[-len(held.token_ids) - 1].astype(np.float64)
    expected = row[held.token_ids[0]] - np.log(np.exp(row - row.max()).sum()) - row.max()
    assert held.logprobs[0][held.token_ids[0]].logprob == pytest.approx(expected, abs=1e-4)


def test_the_last_token_needs_no_other_to_end(write: Write):
    """Where nothing can follow, a completion ends: also where no end may come."""
    for params in ({}, {"ignore_eos": True}, {"min_tokens": 200}):
        (completion,) = write({"choice": ["yes"]}, **params)
        assert (completion.text, completion.finish_reason) == ("yes", "stop")
        assert completion.stop_reason is None


def test_an_end_comes_where_the_form_is_complete_and_not_before_min_tokens(write: Write):
    regex = {"regex": "(ab)+"}
    for least in (1, 6):
        ended = write({"regex": "(ab){1,20}"}, n=8, min_tokens=least)
        assert all(re.fullmatch("(ab){1,20}", each.text) for each in ended)
        assert min(len(each.token_ids) for each in ended) >= least
    (endless,) = write(regex, ignore_eos=True, max_tokens=30)
    assert endless.finish_reason == "length"
    assert len(endless.token_ids) == 30


def test_stop_strings_and_tokens_still_end_it(write: Write, shakespeare: LLM):
    (completion,) = write({"regex": "[a-z ]{5,60};done"}, stop=["do"])
    assert completion.stop_reason == "do"
    assert re.fullmatch("[a-z ]{5,60};", completion.text)
    (comma,) = shakespeare.get_tokenizer().encode(",", add_special_tokens=False)
    (completion,) = write({"regex": "[a-z]{2}(,[a-z]{2})*"}, stop_token_ids=[comma], min_tokens=1)
    assert re.fullmatch("[a-z]{2}", completion.text)


def test_other_edits_act_as_well(write: Write, shakespeare: LLM):
    encode = shakespeare.get_tokenizer().encode
    digits = [encode(digit, add_special_tokens=False)[0] for digit in "0123456789"]
    numbers = {"regex": "[0-9]{6}"}
    (completion,) = write(numbers, allowed_token_ids=digits[3:5])
    assert set(completion.text) <= {"3", "4"}
    (completion,) = write(numbers, logit_bias=dict.fromkeys(digits[7:8], 100.0), max_tokens=6)
    assert "7" in completion.text
    (completion,) = write({"regex": "[0-9]{4}"}, frequency_penalty=2.0, logit_bias={digits[5]: 9})
    assert re.fullmatch("[0-9]{4}", completion.text)
    with pytest.raises(RequestError, match="no token is left"):
        write(numbers, allowed_token_ids=encode("x", add_special_tokens=False))


def test_completions_do_not_depend_on_company(shakespeare_artifact: Path):
    """Alone, together, preempted, beside the kernels or not: the same tokens."""
    asked = [
        SamplingParams(structured_outputs=outputs, seed=seed, max_tokens=80)
        for seed, outputs in enumerate(
            [{"json": PERSON}, {"regex": r"[a-z ]{5,60}\."}, {"choice": CHOICES}, None] * 3
        )
    ]
    prompts = [PROMPT + "What " * (i % 5) for i in range(len(asked))]
    ways = [
        {"config": EngineConfig(overlap=False, max_num_seqs=1)},
        {"config": EngineConfig(overlap=True)},
        {"config": EngineConfig(overlap=False, prefix_cache=False)},
        {"max_model_len": 256, "kv_cache_bytes": None},
    ]
    found = []
    for options in ways:
        with LLM(shakespeare_artifact, num_threads=1, **options) as llm:
            if "max_model_len" in options:
                _shrink(llm, 24)
            outputs = llm.generate(prompts, asked, use_tqdm=False)
            found.append([each.outputs[0].token_ids for each in outputs])
            if "max_model_len" in options:
                assert llm.counters().num_preemptions > 0
    assert found[0] == found[1] == found[2] == found[3]


def _shrink(llm: LLM, num_pages: int) -> None:
    """Leaves the model fewer pages than its requests need together."""
    pages = llm._engine.pages
    pages.admit(-1, (pages.num_pages - num_pages) * pages.page_size, [], 0)


def test_numpy_and_kernels_draw_the_same(write: Write, shakespeare: LLM, monkeypatch):
    asked = {"json": PERSON}
    drawn = [each.token_ids for each in write(asked, n=4)]
    executor = shakespeare._engine._executor
    monkeypatch.setattr(executor, "_sampler", Sampler(executor.vocab_size))
    assert [each.token_ids for each in write(asked, n=4)] == drawn


def test_a_mask_that_is_ignored_shows(write: Write, monkeypatch):
    """The tests above could fail: without masks, nothing keeps the form, and that is an error."""
    everything = Allowed(None, np.empty(0, np.int32))
    monkeypatch.setattr(Vocabulary, "allowed", lambda self, mask: everything)
    with pytest.raises(InternalError, match="does not follow from the grammar"):
        write({"json": PERSON})


def test_a_grammar_that_grows_too_complex_ends_its_request_alone(
    write: Write, shakespeare: LLM, monkeypatch
):
    from ingot.runtime.structured import compiler

    monkeypatch.setattr(compiler, "LIMITS", {**compiler.LIMITS, "step_max_items": 40})
    monkeypatch.setattr(shakespeare._grammars, "_kept", type(shakespeare._grammars._kept)())
    ambiguous = {"grammar": 'start: a+\na: b | b b | b b b\nb: "x" | "xx" | "xxx" | b "y" | b b'}
    with pytest.raises(GrammarError):
        write(ambiguous, max_tokens=200)
    assert write({"choice": ["yes"]})[0].text == "yes"


def test_a_model_without_a_tokenizer_refuses(shakespeare: LLM):
    params = SamplingParams(structured_outputs={"choice": ["a"]})
    with pytest.raises(RequestError, match="structured_outputs"):
        params.for_model(shakespeare.artifact.manifest.model.vocab_size)


def test_parameters_can_be_used_again(write: Write, shakespeare: LLM):
    params = SamplingParams(structured_outputs={"choice": ["a", "b"]}, seed=1)
    for other in (params, replace(params, seed=2), params.clone()):
        (output,) = shakespeare.generate([PROMPT], other, use_tqdm=False)
        assert output.outputs[0].text in ("a", "b")
    assert params.grammar is None
