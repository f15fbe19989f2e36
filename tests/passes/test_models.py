"""Our own models: every option of a config ends in a graph of known ops, with its counts."""

import pytest
import torch

from ingot.compiler.export import export
from ingot.models.blocks.decoder import CausalLM
from ingot.models.config import LayerConfig, ModelConfig, RopeConfig
from ingot.passes.graph import arguments, op_calls
from ingot.passes.pipeline import pipeline
from ingot.passes.runner import run
from tests.passes.support import TARGET

torch.set_num_threads(1)

BASE = {
    "family": "test",
    "architecture": "TestForCausalLM",
    "vocab_size": 37,
    "hidden_size": 32,
    "intermediate_size": 40,
    "layers": (LayerConfig(attention_scale=0.3),) * 2,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 12,
    "hidden_act": "silu",
    "norm_eps": 1e-4,
    "max_position_embeddings": 64,
    "tie_embeddings": True,
    "rope": RopeConfig(rotary_dim=12, original_max_position_embeddings=64),
    "bos_token_ids": (1,),
    "eos_token_ids": (2,),
    "checkpoint_dtype": "float32",
}
PARTIAL = RopeConfig(rotary_dim=8, original_max_position_embeddings=64)
SCALED = RopeConfig(
    type="yarn",
    rotary_dim=12,
    original_max_position_embeddings=16,
    factor=4.0,
    attention_factor=1.2,
)
WINDOWS = (LayerConfig(attention_scale=0.3), LayerConfig(window=5, attention_scale=0.2))
OPTIONS = {
    "plain": {},
    "qk_norm": {"qk_norm": True, "tie_embeddings": False},
    "biases": {"attention_bias": True, "o_bias": True, "mlp_bias": True},
    "partial_rope": {"rope": PARTIAL, "num_kv_heads": 1},
    "scaled_rope": {"rope": SCALED, "num_kv_heads": 4},
    "gelu": {"hidden_act": "gelu_tanh"},
    "windows": {"layers": WINDOWS, "attention_softcap": 20.0},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_compiles_and_keeps_its_numbers(name):
    config = ModelConfig(**{**BASE, **OPTIONS[name]})
    with torch.device("meta"):
        gm = export(CausalLM(config, max_model_len=64), config)
    run(gm, pipeline(), config, target=TARGET, verify=True)
    attention = [arguments(node) for node in op_calls(gm, "paged_attention")]
    assert tuple(given["window"] for given in attention) == config.windows
    assert {given["softcap"] for given in attention} == {config.attention_softcap}
    (table,) = op_calls(gm, "rope_table")
    assert arguments(table)["scale"] == config.rope.attention_factor
