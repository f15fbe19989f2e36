"""Latent attention as config.json describes it, and the plain module against `transformers`."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch

from ingot.errors import CheckpointError, ConfigError, ContradictionError
from ingot.models import registry
from ingot.models.checkpoints.checkpoint import Checkpoint
from ingot.models.config import ModelConfig
from ingot.models.latent_config import LatentConfig
from ingot.models.model_dir import ModelDir
from tests.models.test_against_transformers import check
from tests.support.checkpoints import edit
from tests.support.core import core
from tests.support.latent_models import CASES
from tests.support.published_latent import LITE, PUBLISHED
from tests.support.tiny_models import save_random

# With the keys of DeepSeek-V3, in the sizes of the other.
V3 = {
    **LITE,
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "ep_size": 1,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
}


def mixer_of(config: ModelConfig) -> LatentConfig:
    (mixer,) = {layer.mixer for layer in config.layers}
    assert isinstance(mixer, LatentConfig)
    return mixer


# Parameters in billions, as the models' pages round them, without layers that predict more tokens.
BILLIONS = {
    "deepseek-ai/DeepSeek-V2-Lite": 15.7,
    "deepseek-ai/DeepSeek-V3": 671.0,
    "moonshotai/Moonlight-16B-A3B": 16.0,
    "moonshotai/Kimi-K2-Instruct": 1026.0,
    "zai-org/GLM-4.7-Flash": 30.0,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_file_makes_a_model_of_its_size(name: str) -> None:
    sizes = registry.blueprint(registry.parse_config(PUBLISHED[name])).parameters.values()
    assert sum(map(prod, sizes)) / 1e9 == pytest.approx(BILLIONS[name], rel=0.01)


def test_published_keys() -> None:
    lite, v3 = registry.parse_config(LITE), registry.parse_config(V3)
    mixer = mixer_of(lite)
    assert (mixer.rank, mixer.rotated_dim, mixer.row_size) == (512, 64, 576)
    # m = 0.1 * 0.707 * ln 40 + 1, which counts for queries and for keys.
    assert mixer.scale == pytest.approx(192**-0.5 * 1.2608037**2)
    assert mixer.rope.attention_factor == 1.0 and mixer.rope.pairs == "neighbours"
    assert (mixer.q_rank, mixer_of(v3).q_rank) == (0, 1536)
    assert lite.largest_row == 576 and lite.largest_head == 0
    assert lite.kv_bytes_per_token(2) == 27 * 576 * 2


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_key_value_heads": 4}, "num_key_value_heads"),
        ({"kv_lora_rank": 0}, "kv_lora_rank"),
        ({"scoring_func": "sigmoid"}, "scoring_func"),
        ({"moe_layer_freq": 2}, "moe_layer_freq"),
        ({"topk_method": "noaux_tc"}, "topk_method"),
        ({"norm_topk_prob": True}, "norm_topk_prob"),
    ],
)
def test_values_that_nothing_here_means(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named) as caught:
        registry.parse_config(LITE | changes)
    assert caught.value.hint


@pytest.mark.parametrize("changes", [{"kv_lora_rank": 510}, {"qk_rope_head_dim": 63}])
def test_rows_of_sizes_that_no_kernel_takes(changes: dict[str, Any]) -> None:
    with pytest.raises(ContradictionError):
        registry.parse_config(LITE | changes)


@pytest.mark.parametrize("name", core("deepseek_v3", further=CASES))
def test_logits_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    check(save_random(name, tmp_path))


@pytest.mark.parametrize("key", ["mscale_all_dim", "factor"])
def test_another_scale_is_told_apart(key: str, tmp_path: Path) -> None:
    """The control: what yarn does to scores is seen in the logits."""
    model_dir = save_random("deepseek_v3_yarn", tmp_path)
    path = model_dir / "config.json"
    values = json.loads(path.read_text())
    reference = registry.load_config(ModelDir.open(model_dir))
    values["rope_parameters"][key] *= 2
    path.write_text(json.dumps(values))
    assert (
        mixer_of(registry.load_config(ModelDir.open(model_dir))).scale != mixer_of(reference).scale
    )


@pytest.mark.parametrize("rows", [143, 145])
def test_a_matrix_of_other_heads_is_refused(rows: int, tmp_path: Path) -> None:
    model_dir = save_random("deepseek_v2", tmp_path)
    name = "model.layers.1.self_attn.kv_b_proj.weight"
    edit(model_dir, lambda tensors: tensors.update({name: torch.zeros(rows, 24)}))
    config = registry.load_config(ModelDir.open(model_dir))
    module = registry.build(config, max_model_len=64)
    with pytest.raises(CheckpointError, match=r"kv_b_proj.*\[144, 24\]"):
        Checkpoint.open(ModelDir.open(model_dir), config, module)
