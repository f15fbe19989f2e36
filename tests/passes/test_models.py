"""Our own models: every option of a config ends in a graph of known ops, with its counts."""

from copy import deepcopy
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch.fx import GraphModule

from ingot.compiler.export import export
from ingot.models.attention_config import AttentionConfig
from ingot.models.blocks.decoder import CausalLM
from ingot.models.config import ModelConfig
from ingot.models.counts import module_counts
from ingot.models.layer_config import LayerConfig
from ingot.models.mlp_config import MlpConfig
from ingot.models.rope import RopeConfig
from ingot.passes.dump import op_counts
from ingot.passes.graph import arguments, op_calls
from ingot.passes.invariants import INVARIANTS
from ingot.passes.pipeline import pipeline
from ingot.passes.runner import run
from tests.support.core import core

torch.set_num_threads(1)

ROPE = RopeConfig(rotary_dim=12, original_max_position_embeddings=64)
PARTIAL = RopeConfig(rotary_dim=8, original_max_position_embeddings=64)
NO_ROPE = RopeConfig(type="none", rotary_dim=12, original_max_position_embeddings=64)
SCALED = RopeConfig(
    type="yarn",
    rotary_dim=12,
    original_max_position_embeddings=16,
    factor=4.0,
    attention_factor=1.2,
)
ATTENTION = AttentionConfig(num_heads=4, num_kv_heads=2, head_dim=12, scale=0.3, rope=ROPE)
MLP = MlpConfig(size=40, activation="silu")
BASE = {
    "architecture": "TestForCausalLM",
    "vocab_size": 37,
    "hidden_size": 32,
    "norm_eps": 1e-4,
    "max_position_embeddings": 64,
    "tie_embeddings": True,
    "bos_token_ids": (1,),
    "eos_token_ids": (2,),
    "checkpoint_dtype": "float32",
}
# Of each option: what both layers have, what the second one has, their MLPs, and the model.
OPTIONS = {
    "plain": ({}, {}, {}, {}),
    "qk_norm": ({"qk_norm": "head"}, {}, {}, {"tie_embeddings": False}),
    "biases": ({"bias": True, "o_bias": True}, {}, {"bias": True}, {}),
    "partial_rope": ({"rope": PARTIAL, "num_kv_heads": 1}, {}, {}, {}),
    "scaled_rope": ({"rope": SCALED, "num_kv_heads": 4}, {}, {}, {}),
    "no_rope": ({"rope": NO_ROPE}, {}, {}, {}),
    "ropes": ({}, {"rope": SCALED}, {}, {}),
    "some_rope": ({"rope": PARTIAL}, {"rope": NO_ROPE}, {}, {}),
    "gelu": ({}, {}, {"activation": "gelu_tanh"}, {}),
    "windows": ({"softcap": 20.0}, {"scale": 0.2, "window": 5}, {}, {}),
    "sinks": ({}, {"scale": 0.2, "window": 5, "sinks": True}, {}, {}),
    "sandwich": (
        {},
        {},
        {},
        {
            "placement": "sandwich",
            "norm_offset": 1.0,
            "embedding_scale": 5.7,
            "logit_softcap": 30.0,
        },
    ),
    "neighbours": ({"rope": replace(ROPE, pairs="neighbours")}, {}, {}, {}),
    "part_of_neighbours": ({"rope": replace(PARTIAL, pairs="neighbours")}, {}, {}, {}),
    "temperature": ({"rope": ROPE, "query_temperature": 0.2}, {}, {}, {}),
    "full_norm": ({"qk_norm": "full"}, {}, {}, {"placement": "post"}),
    "norm_after_rope": ({"qk_norm": "head", "norm_after_rope": True}, {}, {}, {}),
    "parallel": (
        {"qk_norm": "each_head"},
        {},
        {},
        {"placement": "parallel", "norm": "layer", "norm_bias": False, "logit_scale": 0.3},
    ),
    "parallel_pair": ({}, {}, {"kind": "plain"}, {"placement": "parallel_pair", "norm": "layer"}),
    "layer_norm": (
        {"rope": NO_ROPE},
        {},
        {"kind": "plain", "activation": "gelu", "bias": True},
        {"norm": "layer", "learned_positions": True},
    ),
}
FIRST = ("ropes", "windows", "sandwich", "layer_norm")


def config_of(name):
    both, second, mlp, model = OPTIONS[name]
    mixers = replace(ATTENTION, **both), replace(ATTENTION, **{**both, **second})
    layers = tuple(LayerConfig(mixer=mixer, mlp=replace(MLP, **mlp)) for mixer in mixers)
    return ModelConfig(**{**BASE, **model}, layers=layers)


def graph_of(config):
    """The model, and its exported graph in a copy that can be edited."""
    module, gm = exported(config)
    return module, GraphModule(gm, deepcopy(gm.graph))


@cache
def exported(config):
    with torch.device("meta"):
        module = CausalLM(config, max_model_len=64)
        return module, export(module, config)


@pytest.mark.cases(core=2, thorough=4)
@pytest.mark.parametrize("dtype", core("bfloat16", further=["float32", "float16"]))
@pytest.mark.parametrize("name", core(*FIRST, further=OPTIONS))
def test_every_option_compiles_and_keeps_its_numbers(name, dtype):
    config = config_of(name)
    module, gm = graph_of(config)
    run(gm, pipeline(dtype=dtype), module_counts(module), verify=True)
    attention = [arguments(node) for node in op_calls(gm, "paged_attention")]
    found = [(given["window"], given["scale"]) for given in attention]
    mixers = [layer.mixer for layer in config.layers]
    assert found == [(mixer.window, mixer.scale) for mixer in mixers]
    assert [given["softcap"] for given in attention] == [mixer.softcap for mixer in mixers]
    sinks = [f"model.layers.{i}.self_attn.sinks" for i in range(2) if mixers[i].sinks]
    assert [given["sinks"].target for given in attention if given["sinks"]] == sinks
    tables = [arguments(node)["scale"] for node in op_calls(gm, "rope_table")]
    assert tables == [rope.attention_factor for rope in config.ropes]
    assert {arguments(n)["offset"] for n in op_calls(gm, "rms_norm")} <= {config.norm_offset}
    assert [i.__name__ for i in INVARIANTS if i(gm)] == []


@pytest.mark.cases(core=2, thorough=6)
@pytest.mark.parametrize("name", core(*FIRST, further=OPTIONS))
def test_blocks_say_exactly_what_a_model_becomes(name):
    """Nothing is found that no block has told of, merged linears apart."""
    config = config_of(name)
    module, gm = graph_of(config)
    counts = module_counts(module)
    run(gm, pipeline(disable=("merge_linears",)), counts)
    found = op_counts(gm)
    expected = {op: counts[op] for op in counts if op not in ("attention", "merged_linears")}
    expected |= {"paged_attention": counts["attention"]}
    ours = {op: n for op, n in found.items() if "." not in op and op != "select_rows"}
    assert ours == {op: n for op, n in expected.items() if n}
