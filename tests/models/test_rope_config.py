"""Rotary parameters: every spelling, every default, and what contradicts itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, Phi3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ingot.errors import ConfigError
from ingot.models.blocks.rotary import inverse_frequencies
from ingot.models.config import RopeConfig
from ingot.models.fields import Fields
from ingot.models.rope_config import parse_rope

LONGEST = 512
LONGROPE = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def parse(*, partial: bool = False, **keys: Any) -> RopeConfig:
    """Of heads of 16; every key of the file must have been read."""
    fields = Fields(keys)
    rope = parse_rope(fields, 16, LONGEST, partial=partial)
    fields.finish()
    return rope


@pytest.mark.parametrize(
    ("keys", "same"),
    [
        ({}, {"rope_theta": 10000}),
        ({}, {"rope_scaling": None, "rope_parameters": None}),
        ({}, {"rope_scaling": {"rope_type": None, "type": None}}),
        ({}, {"rope_parameters": {"rope_type": "default", "finetuned": True}}),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0}},
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0}, "rope_scaling": None},
        ),
        (
            {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
            {"rope_scaling": {"type": "linear", "rope_type": None, "factor": 2}},
        ),
        (
            {"rope_scaling": {"rope_type": "longrope", **LONGROPE}},
            {"rope_scaling": {"type": "su", **LONGROPE}},
        ),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 7.0}},
            {
                "rope_theta": 7.0,
                "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2.0}},
            },
        ),
    ],
)
def test_two_spellings_of_one_rotation(keys: dict[str, Any], same: dict[str, Any]) -> None:
    assert parse(**keys) == parse(**same)


def test_a_silent_file_rotates_all_of_a_head() -> None:
    plain = RopeConfig(rotary_dim=16, original_max_position_embeddings=LONGEST)
    assert parse() == plain and plain.theta == 1e4 and plain.rotates


BOTH = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e6}}


@pytest.mark.parametrize(
    ("named", "keys"),
    [
        ("unknown key rope_theta", {"rope_parameters": {**BOTH, "rope_theta": 1e4}}),
        ("differs between", {"rope_parameters": {"full_attention": None}}),
        ("differs between", {"rope_parameters": {**BOTH, "sliding_attention": None}}),
        ("differs between", {"rope_parameters": {**BOTH, "full_attention": {}}}),
        ("full_attention = 3", {"rope_parameters": {"full_attention": 3}}),
        ("type = 'linear'", {"rope_scaling": {"type": "linear", "rope_type": "yarn"}}),
        ("rope_type = 'axial'", {"rope_parameters": {"rope_type": "axial"}}),
        ("type = 'mrope'", {"rope_scaling": {"type": "mrope"}}),
        ("factor", {"rope_scaling": {"type": "dynamic"}}),
        ("low_freq_factor", {"rope_scaling": {**LLAMA3, "low_freq_factor": None}}),
        ("factor", {"rope_scaling": {**LLAMA3, "factor": None}}),
        ("high_freq_factor = 0.5", {"rope_scaling": {**LLAMA3, "high_freq_factor": 0.5}}),
        ("short_factor", {"rope_scaling": {"type": "longrope", "long_factor": [1.0] * 8}}),
        ("long_factor", {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 8}}),
        (
            "original_max_position_embeddings = 1",
            {"rope_scaling": {"type": "longrope", **LONGROPE},
             "original_max_position_embeddings": 1},
        ),
        ("factor", {"rope_theta": 1e4, "rope_parameters": {"factor": 2.0}}),
        ("partial_rotary_factor = 0.5", {"rope_parameters": {"partial_rotary_factor": 0.5}}),
        ("partial_rotary_factor = 1.5", {"partial_rotary_factor": 1.5}),
    ],
)  # fmt: skip
def test_what_cannot_be_rotated_is_refused(named: str, keys: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(**keys)
    assert named in caught.value.found and caught.value.hint


def test_a_trained_length_of_one_needs_an_attention_factor() -> None:
    short = {"type": "longrope", **LONGROPE, "original_max_position_embeddings": 1}
    assert parse(rope_scaling={**short, "attention_factor": 1.5}).attention_factor == 1.5
    assert parse(rope_scaling={**short, "factor": 1.0}).attention_factor == 1.0


@pytest.mark.parametrize("fraction", [0.125, 0.25, 0.4, 0.51, 0.55, 0.99, 1, 1.0])
def test_a_fraction_of_a_head_is_rounded_down(fraction: float) -> None:
    config = Phi3Config(
        hidden_size=32,
        num_attention_heads=2,
        pad_token_id=None,
        rope_parameters={"rope_type": "default", "partial_rotary_factor": fraction},
    )
    theirs = int(config.hidden_size // config.num_attention_heads * fraction)
    inside = {"partial_rotary_factor": fraction, "rope_type": "default"}
    assert parse(partial=True, partial_rotary_factor=fraction).rotary_dim == theirs
    assert parse(partial=True, rope_parameters=inside).rotary_dim == theirs
    both = parse(partial=True, rope_parameters=inside, partial_rotary_factor=0.7)
    assert both.rotary_dim == theirs


@pytest.mark.parametrize("fraction", [0.0, -0.5, 1.01, True, "0.5"])
def test_what_is_no_fraction_of_a_head_is_refused(fraction: object) -> None:
    with pytest.raises(ConfigError, match="partial_rotary_factor"):
        parse(partial=True, partial_rotary_factor=fraction)


@pytest.mark.parametrize("kind", ["yarn", "llama3", "longrope"])
def test_the_trained_length_is_outside_inside_or_the_longest(kind: str) -> None:
    more: dict[str, Any] = {"yarn": {}, "llama3": LLAMA3, "longrope": LONGROPE}[kind]
    scaling = {**more, "rope_type": kind}
    trained = "original_max_position_embeddings"
    for keys, length in (
        ({}, LONGEST),
        ({"rope_scaling": {**scaling, trained: 64}}, 64),
        ({trained: 32}, 32),
        ({trained: 32, "rope_scaling": {**scaling, trained: 64}}, 32),
    ):
        rope = parse(**{"rope_scaling": scaling, **keys})
        assert rope.original_max_position_embeddings == length
        assert rope.factor == (8.0 if kind == "llama3" else LONGEST / length)


OPTIONAL = st.none() | st.floats(0.5, 64.0)
TURNS = st.sampled_from([None, 1.0, 2.0, 32.0])
MSCALE = st.sampled_from([None, 0, 0.5, 1.3])
STRETCHED = {
    "yarn": {
        "factor": OPTIONAL,
        "attention_factor": st.none() | st.floats(0.0, 2.0),
        "beta_fast": st.sampled_from([None, 2.0, 32.0]),
        "beta_slow": st.sampled_from([None, 1.0, 2.0]),
        "mscale": MSCALE,
        "mscale_all_dim": MSCALE,
        "truncate": st.sampled_from([None, True, False]),
    },
    "longrope": {"factor": OPTIONAL, "attention_factor": st.none() | st.floats(0.0, 2.0)},
}


@pytest.mark.cases(core=1)
@pytest.mark.parametrize("kind", STRETCHED)
@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_null_and_nothing_are_what_transformers_takes_them_for(
    kind: str, data: st.DataObject
) -> None:
    drawn = data.draw(st.fixed_dictionaries({}, optional=STRETCHED[kind]))
    present = {name: value for name, value in drawn.items() if value is not None}
    # Of the shorter one, no pair turns as often as yarn asks for.
    trained = data.draw(st.sampled_from([64, 6]))
    rope = {"rope_type": kind, "rope_theta": 1e4, "original_max_position_embeddings": trained}
    rope |= LONGROPE if kind == "longrope" else {}
    config = LlamaConfig(
        hidden_size=32, num_attention_heads=2, max_position_embeddings=LONGEST,
        rope_parameters={**rope, "factor": None, **present},
    )  # fmt: skip
    expected, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    ours = parse(rope_parameters={**rope, **drawn})
    assert ours.attention_factor == pytest.approx(factor, rel=1e-6)
    torch.testing.assert_close(inverse_frequencies(ours, trained), expected, rtol=1e-6, atol=0)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
OTHERS = {
    **{"factor": 3.0, "original_max_position_embeddings": 64, "attention_factor": 0.5},
    **{"attn_factor": 0.9, "beta_fast": 16.0, "beta_slow": 2.0, "mscale": 0.7, "truncate": False},
    **{"mscale_all_dim": 0.7, "low_freq_factor": 2.0, "high_freq_factor": 3.0, **LONGROPE},
}
OWN: dict[str, tuple[dict[str, Any], set[str]]] = {
    "default": ({"rope_type": "default"}, set()),
    "linear": ({"rope_type": "linear", "factor": 2.0}, set()),
    "dynamic": ({"rope_type": "dynamic", "factor": 2.0}, set()),
    "llama3": (LLAMA3, {"original_max_position_embeddings"}),
    "yarn": (
        YARN,
        {"attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"},
    ),
    "longrope": (
        {"rope_type": "longrope", "factor": 4.0, **LONGROPE},
        {"attention_factor", "original_max_position_embeddings"},
    ),
}


@pytest.mark.parametrize("kind", OWN)
def test_keys_of_other_types_are_passed_over_and_told(kind: str) -> None:
    """transformers warns of them, and computes the same."""
    own, optional = OWN[kind]
    others = {k: v for k, v in OTHERS.items() if k not in own and k not in optional}
    said: list[str] = []
    fields = Fields({"rope_scaling": {**others, **own}}, ignored=said)
    assert parse_rope(fields, 16, LONGEST) == parse(rope_scaling=own)
    told = {text.removeprefix("config.json: rope_scaling: ").partition(" = ")[0] for text in said}
    assert told == others.keys()
    if kind != "default":
        alone, beside = (theirs_of(kind, {"rope_theta": 1e4, **x}) for x in (own, others | own))
        assert torch.equal(alone[0], beside[0]) and alone[1] == beside[1]


def theirs_of(kind: str, parameters: dict[str, Any]) -> Any:
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": LONGEST}
    config = LlamaConfig(rope_parameters=parameters, **sizes)
    return ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=2 * LONGEST)
