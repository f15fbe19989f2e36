"""MPNet: BERT without types of tokens, whose scores also depend on distances, as those of T5."""

from __future__ import annotations

from ingot.models.config import ModelConfig
from ingot.models.distances import DistanceConfig
from ingot.models.encoder_fields import architectures, dense, parse_encoder, with_heads
from ingot.models.families import bert
from ingot.models.families.roberta import PADDING
from ingot.models.family import Family, Rows, Weights
from ingot.models.fields import Fields
from ingot.models.layer_fields import read_attention, read_mlp
from ingot.models.rope import NO_ROPE

DEFAULTS = bert.DEFAULTS | {"vocab_size": 30527}
BUCKETS = 32  # transformers reads the key, and has so many all the same
DISTANCES = DistanceConfig(spacing="t5", buckets=BUCKETS, farthest=128, terms=("heads",))


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `MPNetModel`, with or without a head that classifies."""
    fields.spell(rms_norm_eps="layer_norm_eps")
    fields.assume(**DEFAULTS)
    fields.assume(num_key_value_heads=fields.integer("num_attention_heads"))
    fields.refuse("pad_token_id", (PADDING,), "positions are numbered from the padding's id on")
    fields.refuse("relative_attention_num_buckets", (BUCKETS,), "transformers has 32 buckets")
    return parse_encoder(
        fields,
        mixer=read_attention(
            fields, rope=NO_ROPE, causal=False, bias=True, o_bias=True, distances=DISTANCES
        ),
        mlp=read_mlp(fields, kind="plain", bias=True),
        classifier=(dense(fields, "tanh"),),
        placement="sums",
        embedding_norm=True,
        final_norm=False,
        learned_positions=True,
        max_position_embeddings=fields.integer("max_position_embeddings") - PADDING - 1,
    )


LAYER, THEIRS = "model.layers.{i}", "encoder.layer.{i}"
# A column for each head; all layers have the same.
TABLE = Rows("encoder.relative_attention_bias.weight", transposed=True, shared=True)
WEIGHTS: Weights = {
    "model.embed_tokens.weight": "embeddings.word_embeddings.weight",
    "model.embed_positions.weight": Rows("embeddings.position_embeddings.weight", skip=PADDING + 1),
    "model.embed_norm.{kind}": "embeddings.LayerNorm.{kind}",
    f"{LAYER}.self_attn.bias": TABLE,
    f"{LAYER}.self_attn.q_proj.{{kind}}": f"{THEIRS}.attention.attn.q.{{kind}}",
    f"{LAYER}.self_attn.k_proj.{{kind}}": f"{THEIRS}.attention.attn.k.{{kind}}",
    f"{LAYER}.self_attn.v_proj.{{kind}}": f"{THEIRS}.attention.attn.v.{{kind}}",
    f"{LAYER}.self_attn.o_proj.{{kind}}": f"{THEIRS}.attention.attn.o.{{kind}}",
    f"{LAYER}.post_attention_layernorm.{{kind}}": f"{THEIRS}.attention.LayerNorm.{{kind}}",
    f"{LAYER}.mlp.up_proj.{{kind}}": f"{THEIRS}.intermediate.dense.{{kind}}",
    f"{LAYER}.mlp.down_proj.{{kind}}": f"{THEIRS}.output.dense.{{kind}}",
    f"{LAYER}.post_feedforward_layernorm.{{kind}}": f"{THEIRS}.output.LayerNorm.{{kind}}",
    "head.0.dense.{kind}": "classifier.dense.{kind}",
    "head.1.dense.{kind}": "classifier.out_proj.{kind}",
}

FAMILY = Family(
    name="mpnet",
    architectures=architectures("MPNet"),
    parse=parse,
    weights=with_heads(WEIGHTS),
    spellings={"mpnet.{rest}": "{rest}"},
    unused=bert.UNUSED,
    tied={},
)
