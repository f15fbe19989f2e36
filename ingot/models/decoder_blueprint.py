"""The blueprints of the usual decoder and its parts. No torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ingot.models.attention_config import AttentionConfig
from ingot.models.blueprint import Blueprint, Shape, embedding, layer_norm, linear, rms_norm
from ingot.models.config import ModelConfig, Placement
from ingot.models.layer_config import LayerConfig
from ingot.models.mlp_config import MlpConfig
from ingot.models.rope import RopeConfig


def norm(config: ModelConfig, *sizes: int) -> Blueprint:
    """The norm that a config asks for, with a weight of those sizes, over the last of them."""
    if config.norm == "layer":
        return layer_norm(*sizes, bias=config.norm_bias and len(sizes) == 1)
    return rms_norm(*sizes)


def attention(config: ModelConfig, mixer: AttentionConfig) -> Blueprint:
    """Projections, norms of q and k, sinks."""
    hidden = config.hidden_size
    parts = {
        "q_proj": linear(hidden, mixer.q_size, bias=mixer.bias),
        "k_proj": linear(hidden, mixer.kv_size, bias=mixer.bias),
        "v_proj": linear(hidden, mixer.kv_size, bias=mixer.bias),
    }
    stacked = tuple(parts)
    if mixer.qk_norm != "none":
        parts |= {
            "q_norm": norm(config, *norm_sizes(mixer, mixer.num_heads)),
            "k_norm": norm(config, *norm_sizes(mixer, mixer.num_kv_heads)),
        }
    parts["o_proj"] = linear(mixer.q_size, hidden, bias=mixer.o_bias)
    sinks: dict[str, Shape] = {"sinks": (mixer.num_heads,)} if mixer.sinks else {}
    return Blueprint(shapes=sinks, parts=parts, stacked=stacked)


def norm_sizes(mixer: AttentionConfig, heads: int) -> tuple[int, ...]:
    """The sizes of the weight of a norm of queries or keys."""
    if mixer.qk_norm == "full":
        return (heads * mixer.head_dim,)
    return (heads, mixer.head_dim) if mixer.qk_norm == "each_head" else (mixer.head_dim,)


def dense_mlp(config: ModelConfig, mlp: MlpConfig) -> Blueprint:
    """A gated or a plain MLP."""
    hidden, inner, bias = config.hidden_size, mlp.size, mlp.bias
    up, down = linear(hidden, inner, bias=bias), linear(inner, hidden, bias=bias)
    if mlp.kind == "plain":
        return Blueprint(parts={"up_proj": up, "down_proj": down})
    parts = {"gate_proj": linear(hidden, inner, bias=bias), "up_proj": up, "down_proj": down}
    return Blueprint(parts=parts, stacked=("gate_proj", "up_proj"))


# The blueprint of every kind of mixer and of MLP.
PARTS: Mapping[type, Callable[[ModelConfig, Any], Blueprint]] = {
    AttentionConfig: attention,
    MlpConfig: dense_mlp,
}


def part(config: ModelConfig, of: Any) -> Blueprint:
    """The blueprint of a mixer or an MLP."""
    return PARTS[type(of)](config, of)


# The parts of a layer in the order in which they run, by the names of Llama and Gemma 2.
LAYER_PARTS: Mapping[Placement, tuple[str, ...]] = {
    "pre": ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp"),
    "post": ("self_attn", "post_attention_layernorm", "mlp", "post_feedforward_layernorm"),
    "sandwich": (
        "input_layernorm",
        "self_attn",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "mlp",
        "post_feedforward_layernorm",
    ),
    "parallel": ("input_layernorm", "self_attn", "mlp"),
    "parallel_pair": ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp"),
}


def decoder_layer(config: ModelConfig, layer: LayerConfig) -> Blueprint:
    """Mixer and MLP with the norms around them."""
    width = norm(config, config.hidden_size)
    others = {"self_attn": part(config, layer.mixer), "mlp": part(config, layer.mlp)}
    return Blueprint(
        parts={name: others.get(name, width) for name in LAYER_PARTS[config.placement]}
    )


def rotaries(config: ModelConfig) -> dict[RopeConfig, str]:
    """The names of the parts that compute the tables of rotations, one for each."""
    names = ("rotary_emb", *(f"rotary_emb_{i}" for i in range(1, len(config.ropes))))
    return dict(zip(config.ropes, names, strict=False))


def decoder(config: ModelConfig) -> Blueprint:
    """Embeddings, layers and final norm."""
    width = config.hidden_size
    parts = {"embed_tokens": embedding(config.vocab_size, width, multiplied=config.tie_embeddings)}
    if config.learned_positions:
        parts["embed_positions"] = embedding(config.max_position_embeddings, width)
    made = {layer: decoder_layer(config, layer) for layer in set(config.layers)}
    layers = {str(index): made[layer] for index, layer in enumerate(config.layers)}
    parts |= {"layers": Blueprint(parts=layers), "norm": norm(config, width)}
    for rope, name in rotaries(config).items():
        parts[name] = Blueprint(constants={"inv_freq": (rope.rotary_dim // 2,)})
    return Blueprint(parts=parts)


def causal_lm(config: ModelConfig) -> Blueprint:
    """Decoder and head. A tied head has no parameter of its own."""
    parts = {"model": decoder(config)}
    if not config.tie_embeddings:
        parts["lm_head"] = linear(config.hidden_size, config.vocab_size, outer=True)
    return Blueprint(parts=parts)
