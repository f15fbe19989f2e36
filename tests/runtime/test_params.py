from __future__ import annotations

import dataclasses
import inspect
import pydoc

import pytest

from ingot.errors import IngotError, RequestError
from ingot.runtime.params import RequestOutputKind, SamplingParams
from ingot.runtime.reasoning import ReasoningParams
from ingot.runtime.structured.outputs import StructuredOutputsParams

NAN, INF = float("nan"), float("inf")
NOT_NUMBERS = [NAN, INF, -INF, 10**400, "1", True, [1.0], 1j]
NOT_INTEGERS = [NAN, INF, -INF, 1.5, 1.0, -1.0, "1", True, [1], 2**31]
NOT_FLAGS = [1, 0, "yes", None, NAN]
NOT_TOKENS = [[-1], ["1"], [True], [1.0], [NAN], [2**31], 5, "12", {"a": 1}, [None]]

# Every field, and values of every kind that it must not have.
WRONG = {
    "n": [0, -1, 16385, None, *NOT_INTEGERS],
    "temperature": [-0.1, -1e-300, None, *NOT_NUMBERS],
    "top_p": [0, 0.0, -0.5, 1.0000001, 2, None, *NOT_NUMBERS],
    "top_k": [-2, None, *NOT_INTEGERS],
    "min_p": [-0.01, 1.01, None, *NOT_NUMBERS],
    "presence_penalty": [-2.01, 2.01, None, *NOT_NUMBERS],
    "frequency_penalty": [-2.01, 2.01, None, *NOT_NUMBERS],
    "repetition_penalty": [0, 0.0, -1, 1e39, None, *NOT_NUMBERS],
    "seed": [-2, 2**64, 1.0, -1.0, NAN, INF, "1", True],
    "max_tokens": [-1, *NOT_INTEGERS],
    "min_tokens": [-1, 17, None, *NOT_INTEGERS],
    "stop": ["", ["a", ""], [1], 1, ["a"] * 65, [None], b"a", {"a": 1}, True],
    "include_stop_str_in_output": NOT_FLAGS,
    "stop_token_ids": [*NOT_TOKENS, [1] * 65],
    "ignore_eos": NOT_FLAGS,
    "bad_words": ["word", [""], ["  "], [1], 1, ["a"] * 1025, [None], [b"a"]],
    "logit_bias": [
        {1: NAN}, {1: INF}, {1: "2"}, {1: None}, {1: True}, {"1": 1.0}, {-1: 1.0}, {2**31: 1.0},
        {1.0: 1.0}, {True: 1.0}, [(1, 1.0)], "x", 1,
    ],
    "allowed_token_ids": [*NOT_TOKENS, []],
    "logprobs": [-2, 1001, *NOT_INTEGERS],
    "prompt_logprobs": [-2, 1001, *NOT_INTEGERS],
    "detokenize": NOT_FLAGS,
    "skip_special_tokens": NOT_FLAGS,
    "spaces_between_special_tokens": NOT_FLAGS,
    "output_kind": [0, 1, None, "DELTA", True],
    "reasoning": ["<think>", 1, True, [("end", "x")]],
    "structured_outputs": ["json", 1, True, [("json", {})], b"{}"],
    "logits_processors": [len, [1], "abs", ["abs"], [None], {len: 1}],
}  # fmt: skip
CASES = [(field, value) for field, values in WRONG.items() for value in values]

FINE = {
    "n": [1, 2, 16384],
    "temperature": [0, 0.0, 1, 1e-300, 100.0],
    "top_p": [1, 1.0, 1e-300],
    "top_k": [-1, 0, 1, 2**31 - 1],
    "min_p": [0, 1, 0.5],
    "presence_penalty": [-2, 2.0],
    "frequency_penalty": [-2.0, 2],
    "repetition_penalty": [1e-9, 1, 1e9],
    "seed": [None, -1, 0, 2**64 - 1],
    "max_tokens": [0, 1, None, 2**31 - 1],
    "min_tokens": [0, 16],
    "stop": ["x", ("x", "y"), [], None, ["a"] * 64],
    "include_stop_str_in_output": [True],
    "stop_token_ids": [{3}, [0, 2**31 - 1], (), None],
    "ignore_eos": [True],
    "bad_words": [["a b", " c"], (), None],
    "logit_bias": [{}, {3: 1}, {0: -100.0, 5: 1e9}, None],
    "allowed_token_ids": [[3, 1, 3], {7}, None],
    "logprobs": [None, -1, 0, 1000],
    "prompt_logprobs": [None, -1, 0, 1000],
    "detokenize": [False],
    "skip_special_tokens": [False],
    "spaces_between_special_tokens": [False],
    "output_kind": list(RequestOutputKind),
    "logits_processors": [[len], (len, abs), None],
    "reasoning": [{}, {"begin": "", "max_tokens": 0}, ReasoningParams(end="x"), None],
    "structured_outputs": [{"json_object": True}, StructuredOutputsParams(choice=["a"]), None],
}


def test_the_tables_have_every_field():
    fields = {f.name for f in dataclasses.fields(SamplingParams) if f.init}
    assert set(WRONG) == set(FINE) == fields


@pytest.mark.parametrize(("field", "value"), CASES, ids=lambda v: str(v)[:24])
def test_a_wrong_value_is_refused_with_field_value_and_range(field, value):
    with pytest.raises(ValueError) as info:
        SamplingParams(**{field: value})
    assert isinstance(info.value, RequestError) and isinstance(info.value, IngotError)
    assert info.value.found.startswith(f"{field} is ")
    assert info.value.hint.startswith(f"{field} must be ")
    assert len(str(info.value)) < 300


@pytest.mark.parametrize("field", FINE)
def test_values_at_the_edges_are_fine(field):
    for value in FINE[field]:
        SamplingParams(**{field: value})


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"stop": "x", "detokenize": False}, "stop"),
        ({"stop": ["x"], "detokenize": False, "n": 3}, "stop"),
    ],
)
def test_values_that_contradict_each_other_are_refused(values, field):
    with pytest.raises(RequestError) as info:
        SamplingParams(**values)
    assert info.value.found.startswith(f"{field} is ")


def test_defaults_are_those_of_vllm():
    params = SamplingParams()
    assert dataclasses.asdict(params) == {
        "n": 1, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0,
        "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0,
        "seed": None, "max_tokens": 16, "min_tokens": 0, "stop": (),
        "include_stop_str_in_output": False, "stop_token_ids": (), "ignore_eos": False,
        "bad_words": (), "logit_bias": None, "allowed_token_ids": None, "logprobs": None,
        "prompt_logprobs": None, "detokenize": True, "skip_special_tokens": True,
        "spaces_between_special_tokens": True, "output_kind": RequestOutputKind.CUMULATIVE,
        "logits_processors": (), "structured_outputs": None, "bad_word_ids": (), "grammar": None,
        "reasoning": None, "budget": None,
    }  # fmt: skip


def test_an_unknown_field_is_refused_with_the_nearest_name():
    with pytest.raises(RequestError, match=r"no field 'temprature'; 'temperature'\?"):
        SamplingParams(temprature=1)
    for name in ("beam_width", "bad_word_ids", "grammar", "budget"):
        with pytest.raises(RequestError, match=f"no field '{name}'"):
            SamplingParams(**{name: 2})


def test_spellings_are_made_one():
    assert SamplingParams(stop="x").stops == ("x",)
    assert SamplingParams(stop=["x", "y"]).stops == ("x", "y")
    assert SamplingParams(top_k=-1).top_k == 0
    assert SamplingParams(seed=-1).seed is None
    assert SamplingParams(max_tokens=None).max_tokens == 2**31 - 1
    assert SamplingParams(temperature=0.001).temperature == 0.01
    assert SamplingParams(allowed_token_ids=[3, 1, 3]).allowed_token_ids == (1, 3)
    assert SamplingParams(logit_bias={5: 1e9, 1: -200}).logit_bias == {1: -100.0, 5: 100.0}
    assert SamplingParams(logit_bias={}).logit_bias is None
    assert SamplingParams(stop_token_ids=[1, 2]) == SamplingParams(stop_token_ids=(1, 2))


def test_what_the_caller_gave_is_copied():
    bias, words = {1: 2.0}, ["a"]
    params = SamplingParams(logit_bias=bias, bad_words=words)
    bias[1] = 5.0
    words.append("b")
    assert params.logit_bias == {1: 2.0} and params.bad_words == ("a",)


def test_its_signature_shows_every_field_with_its_default():
    shown = inspect.signature(SamplingParams).parameters
    wanted = {field.name: field.default for field in dataclasses.fields(SamplingParams)}
    for internal in ("bad_word_ids", "grammar", "budget"):
        del wanted[internal]
    assert {name: parameter.default for name, parameter in shown.items()} == wanted
    assert "temperature: 'float' = 1.0" in pydoc.render_doc(
        SamplingParams, renderer=pydoc.plaintext
    )


def test_a_clone_is_equal_and_another_object():
    params = SamplingParams(stop=["x"], logit_bias={1: 2.0}, max_tokens=None)
    assert params.clone() == params and params.clone() is not params


def test_a_field_can_be_assigned_and_is_checked():
    params = SamplingParams(temperature=0)
    params.max_tokens = 100
    params.stop = "x"
    params.bad_words = None
    assert params == SamplingParams(temperature=0, max_tokens=100, stop=["x"])
    for name, value in {"top_p": 2.0, "n": 0, "min_tokens": 101, "tok_k": 3}.items():
        with pytest.raises(RequestError, match=name):
            setattr(params, name, value)
    assert params == SamplingParams(temperature=0, max_tokens=100, stop=["x"])
    with pytest.raises(AttributeError):
        del params.stop


def test_a_new_bad_word_is_spelled_anew():
    params = SamplingParams(bad_words=["x"]).for_model(10, lambda text: [len(text)])
    assert params.bad_word_ids
    params.bad_words = ["yy"]
    assert params.bad_word_ids == ()


@pytest.mark.parametrize(
    "values", [{"stop_token_ids": [10]}, {"allowed_token_ids": [2, 10]}, {"logit_bias": {10: 1.0}}]
)
def test_tokens_beyond_the_vocabulary_are_refused(values):
    (field,) = values
    params = SamplingParams(**values)
    assert params.for_model(11) is params
    with pytest.raises(RequestError) as info:
        params.for_model(10)
    assert info.value.found == f"{field} is 10"
    assert "below 10" in info.value.hint


def test_bad_words_need_a_tokenizer():
    params = SamplingParams(bad_words=["ab"])
    with pytest.raises(RequestError, match="bad_words"):
        params.for_model(100)
    known = params.for_model(100, lambda text: [ord(c) % 50 for c in text])
    assert known.bad_word_ids == ((47, 48),) and params.bad_word_ids == ()
    assert known.for_model(100) is known
    assert known == params
