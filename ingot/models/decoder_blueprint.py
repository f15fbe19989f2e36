"""The blueprints of the usual decoder and encoder, and of their parts. No torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ingot.models.attention_config import AttentionConfig
from ingot.models.blueprint import (
    Blueprint,
    Shape,
    embedding,
    head_linear,
    layer_norm,
    linear,
    rms_norm,
)
from ingot.models.config import ModelConfig, Placement
from ingot.models.delta_blueprint import delta
from ingot.models.delta_config import DeltaConfig
from ingot.models.head_config import DenseConfig
from ingot.models.latent_config import LatentConfig
from ingot.models.layer_config import LayerConfig
from ingot.models.mamba2_config import Mamba2Config
from ingot.models.mamba_config import MambaConfig
from ingot.models.mlp_config import MlpConfig
from ingot.models.moe_config import MoeConfig
from ingot.models.record_blueprint import mamba, mamba2, short_conv
from ingot.models.rope import RopeConfig
from ingot.models.rwkv_blueprint import channel_mix, time_mix
from ingot.models.rwkv_config import ChannelMixConfig, TimeMixConfig
from ingot.models.short_conv_config import ShortConvConfig


def norm(config: ModelConfig, size: int) -> Blueprint:
    """The norm that a config asks for, with a weight of that size."""
    return layer_norm(size, bias=config.norm_bias) if config.norm == "layer" else rms_norm(size)


def attention(config: ModelConfig, mixer: AttentionConfig) -> Blueprint:
    """Projections, norms of q and k, sinks, gate."""
    hidden = config.hidden_size
    parts = {
        "q_proj": linear(hidden, mixer.q_size, bias=mixer.bias),
        "k_proj": linear(hidden, mixer.kv_size, bias=mixer.bias),
        "v_proj": linear(hidden, mixer.kv_size, bias=mixer.bias),
    }
    if mixer.gate_size:
        parts["gate_proj"] = linear(hidden, mixer.gate_size, bias=mixer.bias)
    stacked = (tuple(parts),)
    if mixer.qk_norm != "none":
        parts |= {
            "q_norm": norm(config, norm_size(mixer, mixer.num_heads)),
            "k_norm": norm(config, norm_size(mixer, mixer.num_kv_heads)),
        }
    parts["o_proj"] = linear(mixer.q_size, hidden, bias=mixer.o_bias)
    shapes: dict[str, Shape] = {"sinks": (mixer.num_heads,)} if mixer.sinks else {}
    constants: dict[str, Shape] = {}
    if (by := mixer.distances) is not None:
        constants["buckets"] = (2 * by.farthest + 1,)
        shapes |= {"bias": (mixer.num_heads, by.buckets)} if "heads" in by.terms else {}
        rows = {"queries": ("q_bias", mixer.num_heads), "keys": ("k_bias", mixer.num_kv_heads)}
        parts |= {
            name: head_linear(heads, mixer.head_dim, by.buckets)
            for term, (name, heads) in rows.items()
            if term in by.terms
        }
    return Blueprint(shapes=shapes, constants=constants, parts=parts, stacked=stacked)


def norm_size(mixer: AttentionConfig, heads: int) -> int:
    """The size of the weight of a norm of queries or keys."""
    return mixer.head_dim if mixer.qk_norm == "head" else heads * mixer.head_dim


def dense_mlp(config: ModelConfig, mlp: MlpConfig) -> Blueprint:
    """A gated or a plain MLP."""
    hidden, inner, bias = config.hidden_size, mlp.size, mlp.bias
    up, down = linear(hidden, inner, bias=bias), linear(inner, hidden, bias=bias)
    if mlp.kind == "plain":
        return Blueprint(parts={"up_proj": up, "down_proj": down})
    parts = {"gate_proj": linear(hidden, inner, bias=bias), "up_proj": up, "down_proj": down}
    return Blueprint(parts=parts, stacked=(("gate_proj", "up_proj"),))


def latent_attention(config: ModelConfig, mixer: LatentConfig) -> Blueprint:
    """Products with the input, norms of the low-rank vectors, products of heads, output."""
    hidden, heads, bias = config.hidden_size, mixer.num_heads, mixer.bias
    queries, keys = ("q_plain_proj", "q_rotated_proj"), ("latent_proj", "k_rotated_proj")
    parts = {}
    if mixer.q_rank:
        parts["q_a_proj"] = linear(hidden, mixer.q_rank, bias=bias)
    parts |= {
        name: linear(hidden, rows, bias=bias)
        for name, rows in zip(keys, (mixer.rank, mixer.rotated_dim), strict=True)
    }
    if mixer.q_rank:
        parts["q_a_layernorm"] = rms_norm(mixer.q_rank)
    parts |= {
        name: linear(mixer.q_rank or hidden, heads * size)
        for name, size in zip(queries, (mixer.plain_dim, mixer.rotated_dim), strict=True)
    }
    parts |= {
        "kv_a_layernorm": rms_norm(mixer.rank),
        "k_b_proj": head_linear(heads, mixer.plain_dim, mixer.rank),
        "v_b_proj": head_linear(heads, mixer.rank, mixer.value_dim),
        "o_proj": linear(mixer.o_size, hidden, bias=bias),
    }
    return Blueprint(parts=parts, stacked=_alike(mixer, queries, keys))


def _alike(
    mixer: LatentConfig, queries: tuple[str, ...], keys: tuple[str, ...]
) -> tuple[tuple[str, ...], ...]:
    """Groups of linears that read the same rows, with a bias or without one."""
    if mixer.q_rank:
        return ("q_a_proj", *keys), queries
    return (keys, queries) if mixer.bias else ((*keys, *queries),)


def router(config: ModelConfig, moe: MoeConfig) -> Blueprint:
    """The product that gives each expert a logit, and what is added to scores and logits."""
    product = linear(config.hidden_size, moe.experts, bias=moe.router_bias, exact=True)
    bias = {"e_score_correction_bias": (moe.experts,)} if moe.correction_bias else {}
    return replace(product, shapes={**product.shapes, **bias})


def experts(config: ModelConfig, moe: MoeConfig) -> Blueprint:
    """The matrices of all experts, stacked: the rows of the gate and then those of up, or those of
    up alone, and down."""
    count, inner, width = moe.experts, moe.size, moe.latent or config.hidden_size
    first, rows = ("gate_up_proj", 2 * inner) if moe.kind == "gated" else ("up_proj", inner)
    shapes: dict[str, Shape] = {
        first: (count, rows, width),
        "down_proj": (count, width, inner),
    }
    biases: dict[str, Shape] = {
        f"{first}_bias": (count, rows),
        "down_proj_bias": (count, width),
    }
    return Blueprint(shapes=shapes | (biases if moe.bias else {}), multiplied=True, picks=moe.picks)


def alone(mlp: MlpConfig) -> MoeConfig:
    """An MLP as the only expert, whose share is the sigmoid of its logit."""
    return MoeConfig(
        experts=1,
        picks=1,
        size=mlp.size,
        gate=mlp.activation,
        bias=mlp.bias,
        scoring="sigmoid",
        normalise=False,
    )


def mixture(config: ModelConfig, moe: MoeConfig) -> Blueprint:
    """Router, experts with the products around them, and an MLP for all tokens, with or without a
    gate of its own."""
    hidden, bias = config.hidden_size, moe.latent_bias
    parts = {"gate": router(config, moe)}
    if moe.latent:
        parts["latent_in_proj"] = linear(hidden, moe.latent, bias=bias)
    parts["experts"] = experts(config, moe)
    if moe.latent:
        parts["latent_out_proj"] = linear(moe.latent, hidden, bias=bias)
    if moe.shared and moe.shared_gate:
        only = alone(moe.shared)
        parts |= {"shared_gate": router(config, only), "shared_experts": experts(config, only)}
    elif moe.shared:
        parts["shared_experts"] = dense_mlp(config, moe.shared)
    return Blueprint(parts=parts)


# The blueprint of every kind of mixer and of MLP.
PARTS: Mapping[type, Callable[[ModelConfig, Any], Blueprint]] = {
    AttentionConfig: attention,
    LatentConfig: latent_attention,
    ShortConvConfig: short_conv,
    Mamba2Config: mamba2,
    MambaConfig: mamba,
    DeltaConfig: delta,
    TimeMixConfig: time_mix,
    MlpConfig: dense_mlp,
    MoeConfig: mixture,
    ChannelMixConfig: channel_mix,
}


def part(config: ModelConfig, of: Any) -> Blueprint:
    """The blueprint of a mixer or an MLP."""
    return PARTS[type(of)](config, of)


# The mixer and the MLP of a layer with their norms, in the order in which they run, by the names of
# Llama and Gemma 2.
LAYER_PARTS: Mapping[Placement, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "pre": (("input_layernorm", "self_attn"), ("post_attention_layernorm", "mlp")),
    "post": (("self_attn", "post_attention_layernorm"), ("mlp", "post_feedforward_layernorm")),
    "sandwich": (
        ("input_layernorm", "self_attn", "post_attention_layernorm"),
        ("pre_feedforward_layernorm", "mlp", "post_feedforward_layernorm"),
    ),
    "sums": (("self_attn", "post_attention_layernorm"), ("mlp", "post_feedforward_layernorm")),
    "parallel": (("input_layernorm", "self_attn"), ("mlp",)),
    "parallel_pair": (("input_layernorm", "self_attn"), ("post_attention_layernorm", "mlp")),
}


def decoder_layer(config: ModelConfig, layer: LayerConfig) -> Blueprint:
    """What there is of a mixer and an MLP, with the norms around them."""
    width = norm(config, config.hidden_size)
    others = {
        name: part(config, of)
        for name, of in (("self_attn", layer.mixer), ("mlp", layer.mlp))
        if of is not None
    }
    names = [
        name
        for names in LAYER_PARTS[config.placement]
        if others.keys() & names
        for name in names
        if layer.input_norm or name != "input_layernorm"
    ]
    return Blueprint(parts={name: others.get(name, width) for name in names})


def rotaries(config: ModelConfig) -> dict[RopeConfig, str]:
    """The names of the parts that compute the tables of rotations, one for each."""
    names = ("rotary_emb", *(f"rotary_emb_{i}" for i in range(1, len(config.ropes))))
    return dict(zip(config.ropes, names, strict=False))


def decoder(config: ModelConfig) -> Blueprint:
    """Embeddings, layers and final norm."""
    width = config.hidden_size
    parts = {"embed_tokens": embedding(config.vocab_size, width, multiplied=config.tie_embeddings)}
    if config.learned_positions:
        rows = config.token_types * config.max_position_embeddings
        parts["embed_positions"] = embedding(rows, width)
    if config.embedding_norm:
        parts["embed_norm"] = norm(config, width)
    made = {layer: decoder_layer(config, layer) for layer in set(config.layers)}
    layers = {str(index): made[layer] for index, layer in enumerate(config.layers)}
    parts["layers"] = Blueprint(parts=layers)
    if config.final_norm:
        parts["norm"] = norm(config, width)
    for rope, name in rotaries(config).items():
        parts[name] = Blueprint(constants={"inv_freq": (rope.rotary_dim // 2,)})
    return Blueprint(parts=parts)


def causal_lm(config: ModelConfig) -> Blueprint:
    """Decoder and head. A tied head has no parameter of its own."""
    parts = {"model": decoder(config)}
    if not config.tie_embeddings:
        parts["lm_head"] = linear(config.hidden_size, config.num_logits, outer=True)
    return Blueprint(parts=parts)


def dense_layer(config: ModelConfig, columns: int, layer: DenseConfig) -> Blueprint:
    """A product with a pooled row, and its norm."""
    parts = {"dense": linear(columns, layer.size, bias=layer.bias, outer=True)}
    return Blueprint(parts=parts | ({"norm": norm(config, layer.size)} if layer.norm else {}))


def encoder(config: ModelConfig) -> Blueprint:
    """Layers, and what is made of the row that a text is pooled to."""
    assert config.head is not None, "an encoder has a head"
    if config.head.log1ps:
        return token_scores(config)
    columns, layers = config.head.read(config.hidden_size), {}
    for index, layer in enumerate(config.head.layers):
        layers[str(index)] = dense_layer(config, columns, layer)
        columns = layer.size
    return Blueprint(parts={"model": decoder(config), "head": Blueprint(parts=layers)})


def token_scores(config: ModelConfig) -> Blueprint:
    """Layers, and what gives each token scores. A tied product has no matrix of its own."""
    assert config.head is not None and config.head.masked is not None, "it has scores"
    hidden, masked = config.hidden_size, config.head.masked
    transform = dense_layer(config, hidden, masked.transform)
    scores = linear(hidden, config.vocab_size, bias=masked.bias, outer=True)
    if masked.tied:
        shapes = {name: scores.shapes[name] for name in scores.shapes if name != "weight"}
        scores = Blueprint(shapes=shapes)
    parts = {"model": decoder(config), "head": Blueprint(parts={"0": transform}), "scores": scores}
    return Blueprint(parts=parts)


def model(config: ModelConfig) -> Blueprint:
    """The blueprint of a config that no family builds in a way of its own."""
    return encoder(config) if config.head else causal_lm(config)
