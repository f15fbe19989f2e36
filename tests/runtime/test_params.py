from __future__ import annotations

import dataclasses

import pytest

from ingot.errors import IngotError, RequestError
from ingot.runtime.params import SamplingParams

NAN, INF = float("nan"), float("inf")


def test_defaults_are_those_of_vllm():
    params = SamplingParams()
    assert (params.temperature, params.top_p, params.top_k, params.max_tokens) == (1.0, 1.0, 0, 16)
    assert params.seed is params.logprobs is None
    assert params.skip_special_tokens and params.detokenize and not params.ignore_eos


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1), ("temperature", NAN), ("temperature", INF), ("temperature", "1"),
        ("temperature", None), ("temperature", True), ("top_p", 0), ("top_p", 1.01),
        ("top_p", NAN), ("top_k", -2), ("top_k", 1.5), ("top_k", 2**31), ("max_tokens", 0),
        ("max_tokens", None), ("max_tokens", True), ("min_tokens", 17), ("min_tokens", -1),
        ("seed", -1), ("seed", 2**64), ("seed", 1.0), ("logprobs", -1), ("logprobs", 1001),
        ("stop", ""), ("stop", ["a", ""]), ("stop", [1]), ("stop", 1), ("stop", ["a"] * 65),
        ("stop_token_ids", [-1]), ("stop_token_ids", ["1"]), ("stop_token_ids", [True]),
        ("stop_token_ids", 5), ("ignore_eos", 1), ("detokenize", None),
        ("skip_special_tokens", "yes"), ("include_stop_str_in_output", 0),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_by_name(field, value):
    with pytest.raises(ValueError) as info:
        SamplingParams(**{field: value})
    assert isinstance(info.value, RequestError) and isinstance(info.value, IngotError)
    assert info.value.found.startswith(f"{field} is ")
    assert info.value.hint.startswith(field) or field == "stop"


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": 0}, {"temperature": 100.0}, {"top_p": 1}, {"top_k": 2**31 - 1},
        {"seed": 0}, {"seed": 2**64 - 1}, {"logprobs": 0}, {"stop": "x"}, {"stop": ("x", "y")},
        {"stop_token_ids": {3}}, {"min_tokens": 16}, {"max_tokens": 1},
    ],
)  # fmt: skip
def test_values_at_the_edges_are_fine(values):
    SamplingParams(**values)


def test_an_unknown_field_is_refused_with_the_nearest_name():
    with pytest.raises(RequestError, match=r"no field 'temprature'; 'temperature'\?"):
        SamplingParams(temprature=1)
    with pytest.raises(RequestError, match="no field 'beam_width'"):
        SamplingParams(beam_width=2)


def test_spellings_are_made_one():
    assert SamplingParams(stop="x").stops == ("x",)
    assert SamplingParams(stop=["x", "y"]).stops == ("x", "y")
    assert SamplingParams(top_k=-1).top_k == 0
    assert SamplingParams(stop_token_ids=[1, 2]) == SamplingParams(stop_token_ids=(1, 2))


def test_it_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        SamplingParams().top_k = 3
    assert dataclasses.replace(SamplingParams(), top_k=3).top_k == 3


def test_stop_strings_need_text():
    with pytest.raises(RequestError, match="stop"):
        SamplingParams(stop="x", detokenize=False)
