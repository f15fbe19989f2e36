"""Shapes of RWKV-7 as fla's checkpoints have them; `transformers` has no class of it."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

Shapes = dict[str, tuple[int, ...]]

# Width, layers, and the ranks of decay, rate, values and gate of published models.
RWKV_SHAPES: Mapping[str, tuple[int, int, tuple[int, int, int, int]]] = {
    "rwkv7-0.4b": (1024, 24, (64, 64, 32, 128)),
    "rwkv7-1.5b": (2048, 24, (96, 96, 64, 256)),
    "rwkv7-small": (512, 2, (64, 64, 32, 128)),
}
LOW = ("w", "a", "v", "g")
VOCABULARY, HEAD = 65536, 64


def rwkv_config(name: str) -> SimpleNamespace:
    """The content of config.json, as attributes."""
    width, layers, (decay, rate, value, gate) = RWKV_SHAPES[name]
    return SimpleNamespace(
        architectures=["RWKV7ForCausalLM"],
        model_type="rwkv7",
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        head_dim=HEAD,
        decay_low_rank_dim=decay,
        a_low_rank_dim=rate,
        v_low_rank_dim=value,
        gate_low_rank_dim=gate,
        norm_eps=1e-5,
        norm_first=True,
        norm_bias=True,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=0,
        torch_dtype="bfloat16",
    )


def rwkv_weights(config: Any) -> Shapes:
    """The tensors of a model, by fla's names."""
    width, inner, words = config.hidden_size, config.intermediate_size, config.vocab_size
    ranks = {letter: getattr(config, f"{full}_low_rank_dim") for letter, full in
             zip(LOW, ("decay", "a", "v", "gate"), strict=True)}  # fmt: skip
    found: Shapes = {"model.embeddings.weight": (words, width)}

    def norm(name: str) -> Shapes:
        return {f"{name}.weight": (width,), f"{name}.bias": (width,)}

    for i in range(config.num_hidden_layers):
        layer = f"model.layers.{i}"
        att = f"{layer}.attn"
        found |= norm(f"{layer}.pre_norm") if i == 0 else {}
        found |= norm(f"{layer}.attn_norm") | norm(f"{layer}.ffn_norm") | norm(f"{att}.g_norm")
        found |= {f"{att}.x_{letter}": (1, 1, width) for letter in "rwkvag"}
        found |= {f"{att}.{name}": (width,) for name in ("k_k", "k_a")}
        found |= {f"{att}.r_k": (width // HEAD, HEAD)}
        found |= {f"{att}.{name}_proj.weight": (width, width) for name in "rkvo"}
        for letter, rank in ranks.items():
            if letter == "v" and i == 0:
                continue
            low = f"{att}.{letter}_lora.lora"
            found |= {f"{low}.0.weight": (rank, width), f"{low}.2.weight": (width, rank)}
            found |= {} if letter == "g" else {f"{low}.2.bias": (width,)}
        found |= {f"{layer}.ffn.x_k": (width,)}
        found |= {f"{layer}.ffn.key.weight": (inner, width)}
        found |= {f"{layer}.ffn.value.weight": (width, inner)}
    return found | norm("model.norm") | {"lm_head.weight": (words, width)}
