"""ModernBERT: rotary positions, gated MLPs, and windows in all but every third layer."""

from __future__ import annotations

from dataclasses import replace

from ingot.models.config import ModelConfig
from ingot.models.encoder_fields import architectures, dense, parse_encoder, with_heads
from ingot.models.family import Family, Rows, Weights
from ingot.models.fields import Fields
from ingot.models.head_config import MaskedConfig
from ingot.models.layer_fields import (
    layer_windows,
    read_attention,
    read_head_dim,
    read_mlp,
    read_num_layers,
)
from ingot.models.rope_config import parse_ropes

DEFAULTS = {
    "vocab_size": 50368,
    "hidden_size": 768,
    "num_hidden_layers": 22,
    "num_attention_heads": 12,
    "intermediate_size": 1152,
    "hidden_act": "gelu",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 160000.0,
}
# Of training, of other heads, and of how its own code runs.
IGNORED = (
    *("mlp_dropout", "reference_compile", "repad_logits_with_grad"),
    *("sparse_pred_ignore_index", "sparse_prediction", "deterministic_flash_attn"),
    *("initializer_cutoff_factor", "cls_token_id", "gradient_checkpointing"),
)


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `ModernBertModel`, with or without a head that classifies."""
    fields.spell(
        hidden_act="hidden_activation", rms_norm_eps="norm_eps", rope_theta="global_rope_theta"
    )
    fields.assume(**DEFAULTS)
    fields.assume(num_key_value_heads=fields.integer("num_attention_heads"))
    for key in IGNORED:
        fields.raw(key, None)
    longest = fields.integer("max_position_embeddings")
    local = fields.positive("local_rope_theta", 10000.0)
    full, sliding = parse_ropes(fields, read_head_dim(fields), longest, sliding_theta=local)
    bias = fields.flag("attention_bias", False)
    attention = read_attention(fields, rope=full, causal=False, bias=bias, o_bias=bias)
    radius = fields.integer("local_attention", 128) // 2
    every = fields.integer("global_attn_every_n_layers", 3)
    slides = [bool(index % every) for index in range(read_num_layers(fields))]
    windows = layer_windows(fields, radius + 1, slides)
    config = parse_encoder(
        fields,
        mixer=tuple(replace(attention, window=w, rope=sliding if w else full) for w in windows),
        mlp=read_mlp(fields, bias=fields.flag("mlp_bias", False)),
        classifier=(classifier(fields),),
        token_classifier=(classifier(fields),),
        masked=MaskedConfig(transform=classifier(fields), bias=fields.flag("decoder_bias", True)),
        classifier_pooling="mean" if read_pooling(fields) == "mean" else "first",
        norm_bias=fields.flag("norm_bias", False),
        embedding_norm=True,
    )
    first, *others = config.layers
    return replace(config, layers=(replace(first, input_norm=False), *others))


def classifier(fields: Fields):  # type: ignore[no-untyped-def]
    """The layer before the last of a head that classifies."""
    fields.choice("classifier_activation", {"gelu": "gelu"}, "gelu")
    return dense(fields, "gelu", norm=True, bias=fields.flag("classifier_bias", False))


def read_pooling(fields: Fields) -> str:
    """The row of a text that is classified."""
    return fields.choice("classifier_pooling", {"cls": "first", "mean": "mean"}, "cls")


LAYER, THEIRS = "model.layers.{i}", "layers.{i}"
FUSED = f"{THEIRS}.attn.Wqkv.{{kind}}"

WEIGHTS: Weights = {
    "model.embed_tokens.weight": "embeddings.tok_embeddings.weight",
    "model.embed_norm.{kind}": "embeddings.norm.{kind}",
    f"{LAYER}.input_layernorm.{{kind}}": f"{THEIRS}.attn_norm.{{kind}}",
    f"{LAYER}.self_attn.q_proj.{{kind}}": Rows(FUSED, 0),
    f"{LAYER}.self_attn.k_proj.{{kind}}": Rows(FUSED, 1),
    f"{LAYER}.self_attn.v_proj.{{kind}}": Rows(FUSED, 2),
    f"{LAYER}.self_attn.o_proj.{{kind}}": f"{THEIRS}.attn.Wo.{{kind}}",
    f"{LAYER}.post_attention_layernorm.{{kind}}": f"{THEIRS}.mlp_norm.{{kind}}",
    f"{LAYER}.mlp.gate_proj.{{kind}}": Rows(f"{THEIRS}.mlp.Wi.{{kind}}", 0),
    f"{LAYER}.mlp.up_proj.{{kind}}": Rows(f"{THEIRS}.mlp.Wi.{{kind}}", 1),
    f"{LAYER}.mlp.down_proj.{{kind}}": f"{THEIRS}.mlp.Wo.{{kind}}",
    "model.norm.{kind}": "final_norm.{kind}",
}
TRANSFORM: Weights = {
    "head.0.dense.{kind}": "head.dense.{kind}",
    "head.0.norm.{kind}": "head.norm.{kind}",
}
LABELS: Weights = {**TRANSFORM, "head.1.dense.{kind}": "classifier.{kind}"}
MASKED: Weights = {**TRANSFORM, "scores.{kind}": "decoder.{kind}"}

FAMILY = Family(
    name="modernbert",
    architectures=architectures("ModernBert"),
    parse=parse,
    weights=with_heads({**WEIGHTS, **LABELS}, masked=MASKED, token_labels=LABELS),
    spellings={"model.{rest}": "{rest}"},
    unused=("head.{rest}", "decoder.{rest}"),
    tied={"decoder.weight": "embeddings.tok_embeddings.weight"},
)
