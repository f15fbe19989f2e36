"""Families with experts: against `transformers`, by their published files, and their faults."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest

from ingot.compiler.explain import active_parameters
from ingot.errors import ConfigError, ContradictionError
from ingot.models import registry
from ingot.models.model_dir import ModelDir
from ingot.models.moe_config import MoeConfig
from tests.models.test_against_transformers import check, error, load, logits, theirs
from tests.support.core import core
from tests.support.published_experts import PUBLISHED
from tests.support.tiny_models import MOE, save_random

USUAL = [name for name in MOE if "_" not in name]


@pytest.mark.parametrize("name", core("mixtral", "gptoss", further=USUAL, slow=MOE))
def test_logits_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    check(save_random(name, tmp_path))


@pytest.mark.parametrize("name", core("qwen2moe", "gptoss", further=USUAL, slow=MOE))
def test_a_blueprint_has_the_parameters_of_the_module(name: str, tmp_path: Path) -> None:
    config = registry.load_config(ModelDir.open(save_random(name, tmp_path)))
    module = registry.build(config, max_model_len=64)
    told = registry.blueprint(config).parameters
    assert told == {name: tuple(p.shape) for name, p in module.named_parameters()}


# Options that change shares or experts alone, and what is there without them.
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "normalise": ("qwen3moe", {"normalise": False}),
    "scale": ("glm4moe", {"scale": 1.0}),
    "correction": ("glm4moe", {"correction_bias": False}),
    "groups": ("glm4moe_groups", {"kept_groups": 4}),
    "scoring": ("minimax", {"scoring": "softmax"}),
    "limit": ("gptoss_layer_types", {"limit": 7.0}),
    "gate": ("mixtral", {"gate": "gelu"}),
    "router bias": ("gptoss", {"router_bias": False}),
    "picks": ("mixtral", {"picks": 3}),
    "shared": ("ernie4moe", {"shared": None}),
}


@pytest.mark.parametrize("option", core("normalise", "scale", further=OPTIONS))
def test_every_option_matters(option: str, tmp_path: Path) -> None:
    """Negative control: without the option the logits are far from those of transformers."""
    name, changes = OPTIONS[option]
    module, _ = load(save_random(name, tmp_path), 300)
    expected = logits(theirs(tmp_path), 300)
    assert error(logits(module, 300), expected) < 1e-5
    for block in module.modules():
        moe = getattr(block, "moe", None)
        if isinstance(moe, MoeConfig) and moe.experts > 1:
            block.moe = replace(moe, **changes)
            if "correction_bias" in changes and hasattr(block, "e_score_correction_bias"):
                block.e_score_correction_bias = None
            if "router_bias" in changes and hasattr(block, "bias"):
                block.bias = None
        if "shared" in changes and hasattr(block, "shared_experts"):
            block.shared_experts = None
    assert error(logits(module, 300), expected) > 1e-3


# Parameters in billions, and those that compute a token with all embeddings, as pages round them.
BILLIONS = {
    "mistralai/Mixtral-8x7B-Instruct-v0.1": (46.7, 12.9),
    "Qwen/Qwen1.5-MoE-A2.7B": (14.3, 2.7),
    "Qwen/Qwen3-30B-A3B": (30.5, 3.35),
    "allenai/OLMoE-1B-7B-0924": (6.92, 1.28),
    "ibm-granite/granite-3.1-1b-a400m-instruct": (1.33, 0.43),
    "openai/gpt-oss-20b": (20.9, 4.19),
    "zai-org/GLM-4.5-Air": (106.9, 13.3),
    "MiniMaxAI/MiniMax-M2": (228.7, 10.9),
    "baidu/ERNIE-4.5-21B-A3B-PT": (21.8, 3.35),
    "tencent/Hunyuan-A13B-Instruct": (80.4, 13.0),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_file_makes_a_model_of_its_size(name: str) -> None:
    blueprint = registry.blueprint(registry.parse_config(PUBLISHED[name]))
    whole = sum(map(prod, blueprint.parameters.values()))
    assert (whole / 1e9, active_parameters(blueprint) / 1e9) == pytest.approx(
        BILLIONS[name], rel=0.02
    )


def moe_of(name: str, **changes: Any) -> MoeConfig:
    moe = registry.parse_config({**PUBLISHED[name], **changes}).layers[-1].mlp
    assert isinstance(moe, MoeConfig)
    return moe


def test_published_routing() -> None:
    qwen = moe_of("Qwen/Qwen3-30B-A3B")
    assert (qwen.experts, qwen.picks, qwen.size, qwen.normalise) == (128, 8, 768, True)
    assert moe_of("Qwen/Qwen1.5-MoE-A2.7B").shared_gate
    glm = moe_of("zai-org/GLM-4.5-Air")
    assert (glm.scoring, glm.correction_bias, glm.eps) == ("sigmoid", True, 1e-20)
    assert glm.shared and glm.shared.size == 1408
    oss = moe_of("openai/gpt-oss-20b")
    assert (oss.gate, oss.limit, oss.bias, oss.router_bias) == ("clamped", 7.0, True, True)


@pytest.mark.parametrize(
    ("name", "changes", "named"),
    [
        ("Qwen/Qwen3-30B-A3B", {"num_experts_per_tok": 129}, "129 experts cannot be picked"),
        ("zai-org/GLM-4.5-Air", {"n_group": 3}, "equal groups"),
        ("zai-org/GLM-4.5-Air", {"topk_group": 2}, "2 of 1 equal groups"),
        ("zai-org/GLM-4.5-Air", {"n_group": 64, "topk_group": 3}, "8 experts cannot be picked"),
        ("zai-org/GLM-4.5-Air", {"n_group": 128, "topk_group": 64}, "no two best"),
    ],
)
def test_numbers_of_experts_that_contradict_each_other(
    name: str, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(ContradictionError, match=named) as caught:
        moe_of(name, **changes)
    assert "config.json" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "changes", "named"),
    [
        ("Qwen/Qwen3-30B-A3B", {"num_experts": 0}, "num_experts = 0"),
        ("Qwen/Qwen3-30B-A3B", {"num_local_experts": 64}, "num_local_experts = 64"),
        ("Qwen/Qwen3-30B-A3B", {"mlp_only_layers": [0.5]}, "mlp_only_layers"),
        ("allenai/OLMoE-1B-7B-0924", {"clip_qkv": 8.0}, "clip_qkv = 8.0"),
        ("openai/gpt-oss-20b", {"experts_per_token": 2}, "experts_per_token = 2"),
        ("openai/gpt-oss-20b", {"swiglu_alpha": 1.0}, "swiglu_alpha = 1.0"),
        ("openai/gpt-oss-20b", {"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ("MiniMaxAI/MiniMax-M2", {"attn_type_list": [0, 1]}, "attn_type_list"),
        ("MiniMaxAI/MiniMax-M2", {"use_routing_bias": False}, "use_routing_bias"),
        ("MiniMaxAI/MiniMax-M2", {"rotary_dim": 256}, "partial_rotary_factor"),
        ("baidu/ERNIE-4.5-21B-A3B-PT", {"use_bias": True}, "use_bias = True"),
        ("tencent/Hunyuan-A13B-Instruct", {"moe_topk": [8, 8]}, "moe_topk"),
        ("tencent/Hunyuan-A13B-Instruct", {"use_mla": True}, "use_mla"),
    ],
)
def test_values_that_are_not_built(name: str, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        moe_of(name, **changes)
    assert named in caught.value.found and caught.value.hint


@pytest.mark.parametrize(
    ("name", "changes", "sparse"),
    [
        ("Qwen/Qwen3-30B-A3B", {"num_hidden_layers": 5, "mlp_only_layers": [2]}, "11011"),
        ("Qwen/Qwen3-30B-A3B", {"num_hidden_layers": 5, "decoder_sparse_step": 2}, "01010"),
        ("zai-org/GLM-4.5-Air", {"num_hidden_layers": 4, "first_k_dense_replace": 3}, "0001"),
        (
            "baidu/ERNIE-4.5-21B-A3B-PT",
            {"num_hidden_layers": 6, "moe_layer_end_index": -1, "moe_layer_interval": 2},
            "010101",
        ),
        (
            "baidu/ERNIE-4.5-21B-A3B-PT",
            {"num_hidden_layers": 6, "moe_layer_start_index": 2, "moe_layer_end_index": 4},
            "001110",
        ),
    ],
)
def test_layers_that_have_experts(name: str, changes: dict[str, Any], sparse: str) -> None:
    layers = registry.parse_config({**PUBLISHED[name], **changes}).layers
    assert "".join(str(int(isinstance(layer.mlp, MoeConfig))) for layer in layers) == sparse
