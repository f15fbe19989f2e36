"""DistilBERT: BERT without types of tokens, in names of its own."""

from __future__ import annotations

from ingot.models.config import ModelConfig
from ingot.models.encoder_fields import architectures, dense, parse_encoder, with_heads
from ingot.models.family import Family, Weights
from ingot.models.fields import Fields
from ingot.models.head_config import MaskedConfig
from ingot.models.layer_fields import read_attention, read_mlp
from ingot.models.rope import NO_ROPE

EPS = 1e-12  # of every norm; no file says it
DEFAULTS = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "max_position_embeddings": 512,
    "rms_norm_eps": EPS,
}


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `DistilBertModel`, with or without a head that classifies."""
    fields.spell(
        hidden_size="dim",
        num_hidden_layers="n_layers",
        num_attention_heads="n_heads",
        intermediate_size="hidden_dim",
        hidden_act="activation",
    )
    fields.assume(**DEFAULTS)
    fields.assume(num_key_value_heads=fields.integer("num_attention_heads"))
    fields.flag("sinusoidal_pos_embds", False)  # such positions are stored as learned ones are
    for key in ("seq_classif_dropout", "qa_dropout", "tie_weights_"):
        fields.raw(key, None)
    return parse_encoder(
        fields,
        mixer=read_attention(fields, rope=NO_ROPE, causal=False, bias=True, o_bias=True),
        mlp=read_mlp(fields, kind="plain", bias=True),
        classifier=(dense(fields, "relu"),),
        masked=MaskedConfig(
            transform=dense(fields, read_mlp(fields, kind="plain").activation, norm=True)
        ),
        placement="sums",
        embedding_norm=True,
        final_norm=False,
        learned_positions=True,
    )


LAYER, THEIRS = "model.layers.{i}", "transformer.layer.{i}"

WEIGHTS: Weights = {
    "model.embed_tokens.weight": "embeddings.word_embeddings.weight",
    "model.embed_positions.weight": "embeddings.position_embeddings.weight",
    "model.embed_norm.{kind}": "embeddings.LayerNorm.{kind}",
    f"{LAYER}.self_attn.q_proj.{{kind}}": f"{THEIRS}.attention.q_lin.{{kind}}",
    f"{LAYER}.self_attn.k_proj.{{kind}}": f"{THEIRS}.attention.k_lin.{{kind}}",
    f"{LAYER}.self_attn.v_proj.{{kind}}": f"{THEIRS}.attention.v_lin.{{kind}}",
    f"{LAYER}.self_attn.o_proj.{{kind}}": f"{THEIRS}.attention.out_lin.{{kind}}",
    f"{LAYER}.post_attention_layernorm.{{kind}}": f"{THEIRS}.sa_layer_norm.{{kind}}",
    f"{LAYER}.mlp.up_proj.{{kind}}": f"{THEIRS}.ffn.lin1.{{kind}}",
    f"{LAYER}.mlp.down_proj.{{kind}}": f"{THEIRS}.ffn.lin2.{{kind}}",
    f"{LAYER}.post_feedforward_layernorm.{{kind}}": f"{THEIRS}.output_layer_norm.{{kind}}",
    "head.0.dense.{kind}": "pre_classifier.{kind}",
    "head.1.dense.{kind}": "classifier.{kind}",
}
MASKED: Weights = {
    "head.0.dense.{kind}": "vocab_transform.{kind}",
    "head.0.norm.{kind}": "vocab_layer_norm.{kind}",
    "scores.{kind}": "vocab_projector.{kind}",
}

FAMILY = Family(
    name="distilbert",
    architectures=architectures("DistilBert"),
    parse=parse,
    weights=with_heads(WEIGHTS, masked=MASKED),
    spellings={"distilbert.{rest}": "{rest}"},
    unused=("vocab_{rest}",),
    tied={"vocab_projector.weight": "embeddings.word_embeddings.weight"},
)
