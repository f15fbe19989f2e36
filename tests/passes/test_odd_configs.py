"""Every family at odd sizes: all passes match as often as its blocks say."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ingot.compiler.export import export
from ingot.errors import PassError
from ingot.models import registry
from ingot.models.counts import module_counts
from ingot.passes.pipeline import pipeline
from ingot.passes.runner import run
from tests.support.core import core
from tests.support.dense_models import CASES, config_of
from tests.support.tiny_models import architecture_of

torch.set_num_threads(1)
SIZES = st.fixed_dictionaries(
    {
        "vocab_size": st.sampled_from([257, 300]),
        "intermediate_size": st.sampled_from([20, 52, 128]),
        "num_hidden_layers": st.sampled_from([1, 3, 5]),
        "num_attention_heads": st.sampled_from([1, 2, 3]),
        "bos_token_id": st.just(1),
        "eos_token_id": st.just(2),
    }
)
HEADS = st.sampled_from([16, 24, 40])
BFLOAT16 = pipeline(dtype="bfloat16")


def values_of(name: str, sizes: dict[str, Any], head: int) -> dict[str, Any]:
    """The config.json of a case in other sizes, without what it has for each layer."""
    values = {**config_of(name).to_dict(), **sizes, "architectures": [architecture_of(name)]}
    head = 16 if name == "phi3_longrope" else head  # as many factors as it has
    values["hidden_size"] = head * sizes["num_attention_heads"]
    values["num_key_value_heads"] = sizes["num_attention_heads"]
    for key in ("layer_types", "no_rope_layers", "_sliding_window_pattern"):
        values.pop(key, None)
    if name.startswith("cohere2"):
        del values["head_dim"]
    return values


@pytest.mark.parametrize("name", core(further=["cohere2", "gemma3"], slow=CASES))
@settings(max_examples=2, deadline=None, derandomize=True)
@given(sizes=SIZES, head=HEADS)
def test_passes_match_as_often_as_blocks_say(name: str, sizes: dict[str, Any], head: int) -> None:
    config = registry.parse_config(values_of(name, sizes, head))
    module = registry.build(config, max_model_len=64)
    run(export(module, config), BFLOAT16, module_counts(module))


def test_a_block_that_says_too_much_is_found() -> None:
    config = registry.parse_config(
        {**config_of("cohere").to_dict(), "architectures": ["CohereForCausalLM"]}
    )
    module = registry.build(config, max_model_len=64)
    counts = module_counts(module)
    counts["layer_norm"] += 1
    with pytest.raises(PassError, match="layer_norm"):
        run(export(module, config), BFLOAT16, counts)
