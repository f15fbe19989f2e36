"""Frequencies and attention factors of every rope type, for any parameters, by `transformers`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ingot.models import registry
from ingot.models.blocks.rotary import inverse_frequencies

FACTORS = st.floats(1.0, 64.0)
TRAINED = st.sampled_from([16, 64, 100, 4096])
THETAS = st.sampled_from([2.0, 100.0, 1e4, 5e5, 1e7])
HEAD_DIMS = st.sampled_from([4, 8, 20, 64, 80, 128])


def yarn() -> st.SearchStrategy[dict[str, Any]]:
    optional = {
        "beta_fast": st.floats(1.5, 64.0),
        "beta_slow": st.floats(0.01, 1.4),
        "truncate": st.booleans(),
        "attention_factor": st.floats(0.5, 2.0),
        "mscale": st.floats(0.1, 2.0),
        "mscale_all_dim": st.floats(0.1, 2.0),
    }
    return st.fixed_dictionaries({"factor": FACTORS}, optional=optional)


PARAMETERS = {
    "linear": st.fixed_dictionaries({"factor": FACTORS}),
    "llama3": st.fixed_dictionaries(
        {
            "factor": FACTORS,
            "low_freq_factor": st.floats(0.1, 2.0),
            "high_freq_factor": st.floats(2.1, 8.0),
        }
    ),
    "yarn": yarn(),
    "proportional": st.fixed_dictionaries(
        {}, optional={"factor": FACTORS, "partial_rotary_factor": st.floats(0.01, 1.0)}
    ),
}


@pytest.mark.cases(core=1)
@pytest.mark.parametrize("kind", PARAMETERS)
@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_they_are_those_of_transformers(kind: str, data: st.DataObject) -> None:
    trained, head_dim = data.draw(TRAINED), data.draw(HEAD_DIMS)
    rope = {"rope_type": kind, "rope_theta": data.draw(THETAS), **data.draw(PARAMETERS[kind])}
    if kind not in ("linear", "proportional"):
        rope["original_max_position_embeddings"] = trained
    config = LlamaConfig(
        hidden_size=2 * head_dim,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=head_dim,
        max_position_embeddings=4 * trained,
        rope_parameters=rope,
        architectures=["LlamaForCausalLM"],
    )
    expected, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    ours = registry.parse_config({**config.to_dict(), "dtype": "float32"}).ropes[0]
    torch.testing.assert_close(inverse_frequencies(ours, trained), expected, rtol=1e-6, atol=0)
    assert ours.attention_factor == pytest.approx(factor, rel=1e-6)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
@pytest.mark.parametrize("length", [63, 64, 65, 200])
def test_those_that_follow_the_length_are_those_of_the_longest_sequence(
    kind: str, length: int
) -> None:
    rope: dict[str, Any] = {"rope_type": kind, "rope_theta": 1e4, "factor": 4.0}
    if kind == "longrope":
        rope |= {"short_factor": [1.5] * 8, "long_factor": [3.0] * 8}
        rope |= {"original_max_position_embeddings": 64}
    config = LlamaConfig(
        hidden_size=32,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64 if kind == "dynamic" else 256,
        rope_parameters=rope,
        architectures=["LlamaForCausalLM"],
    )
    expected, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=length)
    ours = registry.parse_config({**config.to_dict(), "dtype": "float32"}).ropes[0]
    torch.testing.assert_close(inverse_frequencies(ours, length), expected, rtol=1e-6, atol=0)
    assert ours.attention_factor == pytest.approx(factor, rel=1e-6)
