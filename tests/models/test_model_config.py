"""The canonical config: values at their bounds, and values that contradict each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ingot.errors import ConfigError
from ingot.models.config import NO_ROPE, LayerConfig, ModelConfig, RopeConfig

ROPE = RopeConfig(rotary_dim=16, original_max_position_embeddings=64)
CONFIG = ModelConfig(
    family="llama",
    architecture="LlamaForCausalLM",
    vocab_size=320,
    hidden_size=64,
    intermediate_size=96,
    layers=(LayerConfig(attention_scale=0.25), LayerConfig(window=7, attention_scale=0.5)),
    num_heads=6,
    num_kv_heads=2,
    head_dim=16,
    hidden_act="silu",
    norm_eps=1e-6,
    max_position_embeddings=64,
    tie_embeddings=False,
    rope=ROPE,
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
        {"bos_token_ids": (0, 319), "eos_token_ids": (319, 0)},
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
    config = replace(CONFIG, **changes)
    assert {name: getattr(config, name) for name in changes} == changes


@pytest.mark.parametrize(
    ("found", "changes"),
    [
        ("bos_token_id 320 lies outside the vocabulary of 320", {"bos_token_ids": (0, 320)}),
        ("eos_token_id 321 lies outside the vocabulary of 320", {"eos_token_ids": (321,)}),
        ("eos_token_id -1 lies", {"eos_token_ids": (-1,)}),
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
    ],
)
def test_contradictions_are_refused(found: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        replace(CONFIG, **changes)
    assert found in caught.value.found and caught.value.hint


def test_sizes_that_follow() -> None:
    assert CONFIG.num_layers == 2 and CONFIG.windows == (0, 7)
    assert (CONFIG.q_size, CONFIG.kv_size) == (6 * 16, 2 * 16)
    assert CONFIG.kv_bytes_per_token(4) == 2 * (2 * 2 * 16) * 4
    assert NO_ROPE.rotates is False and ROPE.rotates is True
