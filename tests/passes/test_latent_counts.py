"""Latent attention at odd sizes: all passes match as often as its blocks say."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ingot.compiler.export import export
from ingot.models import registry
from ingot.models.counts import module_counts
from ingot.passes.pipeline import pipeline
from ingot.passes.runner import run
from tests.support.core import core
from tests.support.latent_models import CASES

torch.set_num_threads(1)
HEADS = st.sampled_from([1, 3, 5])
SIZES = st.fixed_dictionaries(
    {
        "hidden_size": st.sampled_from([44, 60]),
        "intermediate_size": st.sampled_from([20, 52, 128]),
        "num_hidden_layers": st.sampled_from([1, 3]),
        "kv_lora_rank": st.sampled_from([12, 28]),
        "qk_nope_head_dim": st.sampled_from([5, 16]),
        "qk_rope_head_dim": st.sampled_from([4, 12]),
        "v_head_dim": st.sampled_from([3, 20]),
    }
)
BFLOAT16 = pipeline(dtype="bfloat16")


@pytest.mark.parametrize("name", core(further=["deepseek_v3"], slow=CASES))
@settings(max_examples=3, deadline=None, derandomize=True)
@given(heads=HEADS, sizes=SIZES)
def test_passes_match_as_often_as_blocks_say(name: str, heads: int, sizes: dict[str, Any]) -> None:
    case = CASES[name]()
    values = {**case.to_dict(), **sizes}
    values |= {"num_attention_heads": heads, "num_key_value_heads": heads}
    values.pop("head_dim", None)
    values.pop("qk_head_dim", None)
    values.pop("mlp_layer_types", None)
    values["architectures"] = [type(case).__name__.replace("Config", "ForCausalLM")]
    config = registry.parse_config(values)
    module = registry.build(config, max_model_len=64)
    run(export(module, config), BFLOAT16, module_counts(module), verify=True)
