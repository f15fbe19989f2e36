"""The canonical config: values at their bounds, and values that contradict each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ingot.errors import ConfigError
from ingot.models.attention_config import AttentionConfig
from ingot.models.config import ModelConfig
from ingot.models.layer_config import LayerConfig
from ingot.models.mlp_config import MlpConfig
from ingot.models.rope import NO_ROPE, RopeConfig
from tests.support.configs import with_layers

ROPE = RopeConfig(rotary_dim=16, original_max_position_embeddings=64)
ATTENTION = AttentionConfig(num_heads=6, num_kv_heads=2, head_dim=16, scale=0.25, rope=ROPE)
MLP = MlpConfig(size=96, activation="silu")
CONFIG = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=320,
    hidden_size=64,
    layers=(
        LayerConfig(mixer=ATTENTION, mlp=MLP),
        LayerConfig(mixer=replace(ATTENTION, window=7, scale=0.5), mlp=MLP),
    ),
    norm_eps=1e-6,
    max_position_embeddings=64,
    tie_embeddings=False,
    bos_token_ids=(),
    eos_token_ids=(),
    checkpoint_dtype="float32",
)


def longrope(dim: int, short: int, long: int) -> RopeConfig:
    factors = {"short_factor": (1.0,) * short, "long_factor": (2.0,) * long}
    return replace(ROPE, type="longrope", rotary_dim=dim, **factors)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [
        {"head_dim": 4, "rope": replace(ROPE, rotary_dim=2)},
        {"head_dim": 4, "rope": replace(ROPE, rotary_dim=4)},
        {"head_dim": 4, "rope": NO_ROPE},
        {"rope": replace(ROPE, type="dynamic", rotary_dim=4)},
        {"rope": longrope(16, 8, 8)},
        {"rope": longrope(6, 3, 3)},
        {"num_kv_heads": 6},
        {"num_kv_heads": 1},
    ],
)
def test_values_at_their_bounds(changes: dict[str, Any]) -> None:
    config = with_layers(CONFIG, **changes)
    for layer in config.layers:
        assert {name: getattr(layer.mixer, name) for name in changes} == changes


def test_the_first_and_the_last_token_may_end_a_text() -> None:
    tokens = {"bos_token_ids": (0, 319), "eos_token_ids": (319, 0)}
    config = replace(CONFIG, **tokens)
    assert {name: getattr(config, name) for name in tokens} == tokens


@pytest.mark.parametrize(
    ("found", "changes"),
    [
        ("head_dim is 0", {"head_dim": 0, "rope": NO_ROPE}),
        ("head_dim is -4", {"head_dim": -4, "rope": NO_ROPE}),
        ("head_dim is 18", {"head_dim": 18}),
        ("num_attention_heads 6 is not a multiple of num_key_value_heads 4", {"num_kv_heads": 4}),
        ("num_attention_heads 6 is not a multiple of num_key_value_heads 12", {"num_kv_heads": 12}),
        ("rotates 0 of head_dim 16", {"rope": replace(ROPE, rotary_dim=0)}),
        ("rotates 1 of head_dim 16", {"rope": replace(ROPE, rotary_dim=1)}),
        ("rotates 7 of head_dim 16", {"rope": replace(ROPE, rotary_dim=7)}),
        ("rotates 18 of head_dim 16", {"rope": replace(ROPE, rotary_dim=18)}),
        ("dynamic", {"rope": replace(ROPE, type="dynamic", rotary_dim=2)}),
        ("short_factor has 7 values", {"rope": longrope(16, 7, 8)}),
        ("short_factor has 9 values", {"rope": longrope(16, 9, 8)}),
        ("long_factor has 7 values", {"rope": longrope(16, 8, 7)}),
        ("long_factor has 0 values", {"rope": longrope(16, 8, 0)}),
        ("short_factor has 8 values", {"rope": longrope(6, 8, 8)}),
        ("not rotated have a temperature", {"query_temperature": 0.1, "rope": NO_ROPE}),
        ("whole width after the rotation", {"qk_norm": "full", "norm_after_rope": True}),
        ("rms norms have a weight for each head", {"qk_norm": "each_head"}),
    ],
)
def test_contradictions_are_refused(found: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        with_layers(CONFIG, **changes)
    assert found in caught.value.found and caught.value.hint


@pytest.mark.parametrize("layer", [0, 1])
def test_a_contradiction_in_any_layer_is_refused(layer: int) -> None:
    layers = list(CONFIG.layers)
    layers[layer] = replace(layers[layer], mixer=replace(ATTENTION, head_dim=18))
    with pytest.raises(ConfigError, match="head_dim is 18"):
        replace(CONFIG, layers=tuple(layers))


@pytest.mark.parametrize(
    ("found", "changes"),
    [
        ("bos_token_id 320 lies outside the vocabulary of 320", {"bos_token_ids": (0, 320)}),
        ("eos_token_id 321 lies outside the vocabulary of 320", {"eos_token_ids": (321,)}),
        ("eos_token_id -1 lies", {"eos_token_ids": (-1,)}),
    ],
)
def test_tokens_outside_the_vocabulary_are_refused(found: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        replace(CONFIG, **changes)
    assert found in caught.value.found and caught.value.hint


def test_sizes_that_follow() -> None:
    assert CONFIG.num_layers == 2 and CONFIG.windows == (0, 7)
    assert (ATTENTION.q_size, ATTENTION.kv_size) == (6 * 16, 2 * 16)
    assert CONFIG.largest_head == 16
    assert CONFIG.ropes == (ROPE,) and with_layers(CONFIG, rope=NO_ROPE).ropes == ()
    assert CONFIG.kv_bytes_per_token(4) == 2 * (2 * 2 * 16) * 4
    assert NO_ROPE.rotates is False and ROPE.rotates is True
