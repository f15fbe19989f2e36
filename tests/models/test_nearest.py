"""What is said of architectures that no family builds, by their published files."""

from __future__ import annotations

from typing import Any

import pytest

from ingot.models import registry
from ingot.models.registry import Nearest

COMMON = {
    "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
    "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192,
    "max_position_embeddings": 4096, "num_attention_heads": 32, "num_hidden_layers": 2,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 10000.0,
    "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": 32000,
}  # fmt: skip
ROUTER = (
    "num_experts_per_tok",
    "num_local_experts",
    "output_router_logits",
    "router_aux_loss_coef",
)


def near(architecture: str, without: tuple[str, ...] = (), **own: Any) -> Nearest:
    values = {**COMMON, **own, "architectures": [architecture]}
    return registry.nearest_family({k: v for k, v in values.items() if k not in without})


def test_helium_differs_in_no_key() -> None:
    found = near("HeliumForCausalLM", attention_bias=False, head_dim=128, mlp_bias=False)
    assert (found.family.name, found.differing, found.absent) == ("llama", (), ())


def test_a_family_with_experts_is_near_to_others_with_experts() -> None:
    found = near("MixtralXForCausalLM", **dict.fromkeys(ROUTER, 2), sliding_window=None)
    assert (found.family.name, found.differing, found.absent) == ("mixtral", (), ())


def test_stable_lm_has_other_names() -> None:
    found = near(
        "StableLmForCausalLM", without=("num_key_value_heads", "rms_norm_eps"),
        layer_norm_eps=1e-5, partial_rotary_factor=0.25, use_qkv_bias=True, qk_layernorm=False,
    )  # fmt: skip
    assert found.differing == ("layer_norm_eps", "qk_layernorm", "use_qkv_bias")


@pytest.mark.parametrize("name", registry.families())
def test_keys_that_a_family_knows_never_differ(name: str) -> None:
    """Whatever else is wrong with the file, and however early."""
    family = registry.families()[name]
    whole = {**COMMON, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512}
    whole["architectures"] = list(family.architectures[:1])
    strange = registry.read_config(family, {**whole, "odd": 1}).fields.unread()
    for key in (*COMMON, "n_embd", "n_layer"):
        wrong = registry.read_config(family, {**whole, "odd": 1, key: {"no": "value"}})
        assert wrong.fields.unread() == strange and "odd" in strange, key
