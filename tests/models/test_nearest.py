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


def test_gemma_differs_in_no_key_but_lacks_what_gemma_2_has() -> None:
    found = near(
        "GemmaForCausalLM", attention_bias=False, head_dim=256, hidden_act="gelu_pytorch_tanh",
        hidden_activation=None,
    )  # fmt: skip
    assert (found.family.name, found.differing) == ("gemma2", ())
    assert found.absent == (
        "attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar",
        "sliding_window",
    )  # fmt: skip


def test_gemma_3_has_keys_of_its_own() -> None:
    found = near(
        "Gemma3ForCausalLM", without=("hidden_act",), hidden_activation="gelu_pytorch_tanh",
        head_dim=256, attention_bias=False, attn_logit_softcapping=None, query_pre_attn_scalar=256,
        final_logit_softcapping=None, sliding_window=512, sliding_window_pattern=6,
        rope_local_base_freq=10000,
    )  # fmt: skip
    assert found.family.name == "gemma2" and found.absent == ()
    assert found.differing == ("rope_local_base_freq", "sliding_window_pattern")


def test_mixtral_differs_in_its_router() -> None:
    found = near("MixtralForCausalLM", **dict.fromkeys(ROUTER, 2), sliding_window=None)
    assert (found.family.name, found.differing, found.absent) == ("mistral", ROUTER, ())


def test_phi_3_brings_code_and_a_length() -> None:
    found = near(
        "Phi3ForCausalLM", auto_map={"AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"},
        original_max_position_embeddings=4096, resid_pdrop=0.0, embd_pdrop=0.0,
    )  # fmt: skip
    length, code = found.differing
    assert length == "original_max_position_embeddings" and code.startswith("auto_map = {")


def test_gpt_neox_has_other_names() -> None:
    found = near(
        "GPTNeoXForCausalLM", without=("num_key_value_heads", "rms_norm_eps", "rope_theta"),
        layer_norm_eps=1e-5, rotary_emb_base=10000, rotary_pct=0.25, use_parallel_residual=True,
    )  # fmt: skip
    assert found.family.name == "llama" and found.absent == ("rope_theta",)
    assert found.differing == (
        "layer_norm_eps", "rotary_emb_base", "rotary_pct", "use_parallel_residual",
        "no rms_norm_eps",
    )  # fmt: skip


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
