"""Latent attention as config.json describes it, and the plain module against `transformers`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ingot.errors import CheckpointError, ConfigError, ContradictionError
from ingot.models import registry
from ingot.models.checkpoint import Checkpoint
from ingot.models.config import ModelConfig
from ingot.models.latent_config import LatentConfig
from tests.models.test_against_transformers import check
from tests.support.checkpoints import edit
from tests.support.core import core
from tests.support.latent_models import CASES
from tests.support.tiny_models import save_random

# As published: https://huggingface.co/deepseek-ai/DeepSeek-V2-Lite/blob/main/config.json
LITE: dict[str, Any] = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV2Config"},
    "aux_loss_alpha": 0.001,
    "bos_token_id": 100000,
    "eos_token_id": 100001,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 10944,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "model_type": "deepseek_v2",
    "moe_intermediate_size": 1408,
    "moe_layer_freq": 1,
    "n_group": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "norm_topk_prob": False,
    "num_attention_heads": 16,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 27,
    "num_key_value_heads": 16,
    "pretraining_tp": 1,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        **{"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707},
        **{"mscale_all_dim": 0.707, "original_max_position_embeddings": 4096, "type": "yarn"},
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 1.0,
    "scoring_func": "softmax",
    "seq_aux": True,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "greedy",
    "torch_dtype": "bfloat16",
    "transformers_version": "4.33.1",
    "use_cache": True,
    "v_head_dim": 128,
    "vocab_size": 102400,
}
# What DeepSeek-V3 and Moonlight have otherwise.
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
    reference = registry.load_config(model_dir)
    values["rope_parameters"][key] *= 2
    path.write_text(json.dumps(values))
    assert mixer_of(registry.load_config(model_dir)).scale != mixer_of(reference).scale


@pytest.mark.parametrize("rows", [143, 145])
def test_a_matrix_of_other_heads_is_refused(rows: int, tmp_path: Path) -> None:
    model_dir = save_random("deepseek_v2", tmp_path)
    name = "model.layers.1.self_attn.kv_b_proj.weight"
    edit(model_dir, lambda tensors: tensors.update({name: torch.zeros(rows, 24)}))
    config = registry.load_config(model_dir)
    module = registry.build(config, max_model_len=64)
    with pytest.raises(CheckpointError, match=r"kv_b_proj.*\[144, 24\]"):
        Checkpoint.open(model_dir, config, module)
