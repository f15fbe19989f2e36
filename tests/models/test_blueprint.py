"""Blueprints against the modules that are built, for every family and option."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from ingot.artifact.formats import Storage
from ingot.compiler.packed_sizes import weights_of
from ingot.models import decoder_blueprint, registry
from ingot.models.blocks.block import blueprint_of
from ingot.models.blocks.decoder import CausalLM
from ingot.models.blueprint import Blueprint, Shape
from ingot.models.config import ModelConfig
from ingot.models.families import llama
from tests.support import dense_models as dense
from tests.support.core import core
from tests.support.tiny_models import CASES, EVERY


def config_of(name: str) -> ModelConfig:
    config = EVERY[name]()
    architecture = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]
    values = {**config.to_dict(), "architectures": [architecture]}
    return replace(registry.parse_config(values), checkpoint_dtype="float32")


def shapes(module: nn.Module) -> dict[str, Shape]:
    return {name: tuple(p.shape) for name, p in module.named_parameters()}


@pytest.mark.parametrize("name", core(*CASES, "cohere", further=dense.USUAL, slow=dense.CASES))
def test_a_blueprint_has_the_parameters_of_the_module(name: str) -> None:
    config = config_of(name)
    told, module = registry.blueprint(config), registry.build(config, max_model_len=64)
    assert told.parameters == shapes(module)
    assert {f"{path}.{constant}": shape for path, part in told.modules()
            for constant, shape in part.constants.items()} == {
        name: tuple(buffer.shape) for name, buffer in module.named_buffers()
    }  # fmt: skip


def test_sinks_are_parameters() -> None:
    config = config_of("llama")
    usual = config.layers[0]
    first = replace(usual, mixer=replace(usual.mixer, sinks=True))
    told = decoder_blueprint.causal_lm(replace(config, layers=(first, *config.layers[1:])))
    assert {n: s for n, s in told.parameters.items() if "sinks" in n} == {
        "model.layers.0.self_attn.sinks": (4,)
    }


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2", "qwen3_tied"])
def test_what_a_module_tells_is_what_its_blueprint_told(name: str) -> None:
    """Of a family with a module of its own nothing else is known."""
    config = config_of(name)
    module = registry.build(config, max_model_len=64)
    told, own = blueprint_of(module), registry.blueprint(config)
    assert told.parameters == own.parameters
    assert sorted(weights_of(told), key=str) == sorted(weights_of(own), key=str)


class Wider(CausalLM):
    """A decoder with a parameter more, and a part that stands in it twice."""

    def __init__(self, config: ModelConfig, **options: Any) -> None:
        super().__init__(config, **options)
        self.more = nn.Parameter(torch.empty(3, 5))
        self.again = self.model.norm


def test_a_family_with_its_own_module_is_asked_for_it() -> None:
    """The control of all above: a blueprint that lacks a parameter is seen."""
    own = replace(llama.FAMILY, name="wider", architectures=("WiderForCausalLM",), build=Wider)
    config = config_of("llama")
    told = registry.blueprint(replace(config, family=own)).parameters
    assert told.pop("more") == (3, 5)
    assert told == registry.blueprint(config).parameters


def test_linears_that_read_the_same_rows_are_one_weight() -> None:
    names = [weight.name for weight in weights_of(registry.blueprint(config_of("gpt2")))]
    attention = "model.layers.1.self_attn"
    assert f"{attention}.q_k_v_proj.weight" in names and f"{attention}.q_k_v_proj.bias" in names
    assert not any("up_gate" in name or "gate_up" in name for name in names)
    assert len(names) == len(set(names))


def test_what_a_checkpoint_stores_in_different_ways_stays_apart() -> None:
    stored = {f"model.layers.1.self_attn.{n}_proj.weight": Storage(4, 32) for n in "qk"}
    found = weights_of(registry.blueprint(config_of("llama")), stored)
    own = [w.name.split(".")[-2] for w in found if w.name.startswith("model.layers.1.self_attn.")]
    assert own == ["q_k_proj", "v_proj", "o_proj"]
    assert "model.layers.0.self_attn.q_k_v_proj.weight" in [weight.name for weight in found]


def test_every_name_of_what_becomes_one_weight_is_a_parameter() -> None:
    named = registry.blueprint(config_of("llama"))
    assert named.together[:2] == [
        tuple(f"model.layers.0.self_attn.{name}_proj.weight" for name in "qkv"),
        tuple(f"model.layers.0.mlp.{name}_proj.weight" for name in ("gate", "up")),
    ]
    assert {name for names in named.together for name in names} <= named.parameters.keys()


def test_an_empty_blueprint_is_that_of_a_module_without_anything() -> None:
    assert blueprint_of(nn.ReLU()) == Blueprint() and Blueprint().parameters == {}
