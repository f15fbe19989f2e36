"""BERT and what is built like it, such as MiniLM: norms of sums, learned positions and types."""

from __future__ import annotations

from typing import Any

from ingot.models.config import ModelConfig
from ingot.models.encoder_fields import architectures, dense, parse_encoder, with_heads
from ingot.models.family import Family, Rows, Sums, Weights
from ingot.models.fields import Fields
from ingot.models.head_config import MaskedConfig
from ingot.models.layer_fields import read_attention, read_mlp
from ingot.models.rope import NO_ROPE

DEFAULTS = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-12,
}


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `BertModel`, and of what has a head that classifies upon it."""
    fields.spell(rms_norm_eps="layer_norm_eps")
    fields.assume(**DEFAULTS)
    act = read_mlp(fields, kind="plain").activation
    masked = MaskedConfig(transform=dense(fields, act, norm=True))
    return parse_layers(fields, token_types=fields.integer("type_vocab_size", 2), masked=masked)


def parse_layers(fields: Fields, **others: Any) -> ModelConfig:
    """A config with BERT's layers; `others` are fields of it in which families differ."""
    fields.assume(num_key_value_heads=fields.integer("num_attention_heads"))
    fields.refuse("position_embedding_type", ("absolute",), "supported: absolute positions")
    return parse_encoder(
        fields,
        mixer=read_attention(fields, rope=NO_ROPE, causal=False, bias=True, o_bias=True),
        mlp=read_mlp(fields, kind="plain", bias=True),
        classifier=(dense(fields, "tanh"),),
        placement="sums",
        embedding_norm=True,
        final_norm=False,
        learned_positions=True,
        **others,
    )


LAYER, THEIRS = "model.layers.{i}", "encoder.layer.{i}"


def weights(config: ModelConfig, skipped: int = 0) -> Weights:
    """The table of tensors; so many rows of the table of positions are skipped."""
    positions = Rows("embeddings.position_embeddings.weight", skip=skipped)
    types = Rows("embeddings.token_type_embeddings.weight")
    attention, theirs = f"{LAYER}.self_attn", f"{THEIRS}.attention"
    return {
        "model.embed_tokens.weight": "embeddings.word_embeddings.weight",
        "model.embed_positions.weight": Sums(types, positions, config.token_types),
        "model.embed_norm.{kind}": "embeddings.LayerNorm.{kind}",
        f"{attention}.q_proj.{{kind}}": f"{theirs}.self.query.{{kind}}",
        f"{attention}.k_proj.{{kind}}": f"{theirs}.self.key.{{kind}}",
        f"{attention}.v_proj.{{kind}}": f"{theirs}.self.value.{{kind}}",
        f"{attention}.o_proj.{{kind}}": f"{theirs}.output.dense.{{kind}}",
        f"{LAYER}.post_attention_layernorm.{{kind}}": f"{theirs}.output.LayerNorm.{{kind}}",
        f"{LAYER}.mlp.up_proj.{{kind}}": f"{THEIRS}.intermediate.dense.{{kind}}",
        f"{LAYER}.mlp.down_proj.{{kind}}": f"{THEIRS}.output.dense.{{kind}}",
        f"{LAYER}.post_feedforward_layernorm.{{kind}}": f"{THEIRS}.output.LayerNorm.{{kind}}",
        "head.0.dense.{kind}": "pooler.dense.{kind}",
        "head.1.dense.{kind}": "classifier.{kind}",
    }


MASKED: Weights = {
    "head.0.dense.{kind}": "cls.predictions.transform.dense.{kind}",
    "head.0.norm.{kind}": "cls.predictions.transform.LayerNorm.{kind}",
    "scores.weight": "cls.predictions.decoder.weight",
    "scores.bias": ("cls.predictions.bias", "cls.predictions.decoder.bias"),
}
# Names of norms in files of TensorFlow's days.
OLD_NORMS = {
    "{norm}LayerNorm.gamma": "{norm}LayerNorm.weight",
    "{norm}LayerNorm.beta": "{norm}LayerNorm.bias",
}
# A head that the model was trained with, or that another task has.
UNUSED = ("embeddings.position_ids", "pooler.dense.{kind}", "cls.{rest}", "lm_head.{rest}")

FAMILY = Family(
    name="bert",
    architectures=architectures("Bert"),
    parse=parse,
    weights=with_heads(weights, masked=MASKED),
    spellings={"bert.{rest}": "{rest}", **OLD_NORMS},
    unused=UNUSED,
    tied={"cls.predictions.decoder.weight": "embeddings.word_embeddings.weight"},
)
