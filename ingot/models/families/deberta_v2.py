"""DeBERTa v2 and v3: BERT whose scores also have products of queries, and of keys, with embeddings
of their distance."""

from __future__ import annotations

from typing import cast

from ingot.models.config import ModelConfig
from ingot.models.distance_fields import distance_weights, read_distances, read_kinds
from ingot.models.encoder_fields import architectures, dense, parse_encoder, with_heads
from ingot.models.families import bert
from ingot.models.family import Family, Weights
from ingot.models.fields import Fields
from ingot.models.head_config import HeadActivation
from ingot.models.layer_fields import ACTIVATIONS, read_attention, read_head_dim, read_mlp
from ingot.models.rope import NO_ROPE

DEFAULTS = bert.DEFAULTS | {"vocab_size": 128100, "rms_norm_eps": 1e-7}
# Of training, of other heads, and of a convolution that is not there.
IGNORED = ("legacy", "pooler_dropout", "cls_dropout", "conv_act", "conv_groups")


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `DebertaV2Model`, with or without a head that classifies."""
    fields.spell(rms_norm_eps="layer_norm_eps", head_dim="attention_head_size")
    fields.assume(**DEFAULTS)
    fields.assume(num_key_value_heads=fields.integer("num_attention_heads"))
    for key in ("embedding_size", "pooler_hidden_size"):
        fields.refuse(key, (fields.integer("hidden_size"),), "supported: the width of the layers")
    fields.refuse("conv_kernel_size", (0,), "supported: models without a convolution")
    for key in IGNORED:
        fields.raw(key, None)
    fields.refuse("type_vocab_size", (0,), "supported: tokens of one type, without an embedding")
    kinds = read_kinds(fields)
    activation = fields.choice("pooler_hidden_act", {**ACTIVATIONS, "tanh": "tanh"}, "gelu")
    return parse_encoder(
        fields,
        mixer=read_attention(
            fields,
            rope=NO_ROPE,
            causal=False,
            bias=True,
            o_bias=True,
            scale=(read_head_dim(fields) * (1 + len(kinds))) ** -0.5,
            distances=read_distances(fields, kinds),
        ),
        mlp=read_mlp(fields, kind="plain", bias=True),
        classifier=(dense(fields, cast(HeadActivation, activation)),),
        placement="sums",
        embedding_norm=True,
        final_norm=False,
        learned_positions=fields.flag("position_biased_input", True),
    )


LAYER, THEIRS = "model.layers.{i}", "encoder.layer.{i}"
ATTENTION = f"{THEIRS}.attention"
POSITIONS = "embeddings.position_embeddings.weight"


def weights(config: ModelConfig) -> Weights:
    """The table of tensors."""
    return {
        "model.embed_tokens.weight": "embeddings.word_embeddings.weight",
        "model.embed_positions.weight": POSITIONS,
        "model.embed_norm.{kind}": "embeddings.LayerNorm.{kind}",
        f"{LAYER}.self_attn.q_proj.{{kind}}": f"{ATTENTION}.self.query_proj.{{kind}}",
        f"{LAYER}.self_attn.k_proj.{{kind}}": f"{ATTENTION}.self.key_proj.{{kind}}",
        f"{LAYER}.self_attn.v_proj.{{kind}}": f"{ATTENTION}.self.value_proj.{{kind}}",
        **distance_weights(config, f"{LAYER}.self_attn", f"{ATTENTION}.self"),
        f"{LAYER}.self_attn.o_proj.{{kind}}": f"{ATTENTION}.output.dense.{{kind}}",
        f"{LAYER}.post_attention_layernorm.{{kind}}": f"{ATTENTION}.output.LayerNorm.{{kind}}",
        f"{LAYER}.mlp.up_proj.{{kind}}": f"{THEIRS}.intermediate.dense.{{kind}}",
        f"{LAYER}.mlp.down_proj.{{kind}}": f"{THEIRS}.output.dense.{{kind}}",
        f"{LAYER}.post_feedforward_layernorm.{{kind}}": f"{THEIRS}.output.LayerNorm.{{kind}}",
        "head.0.dense.{kind}": "pooler.dense.{kind}",
        "head.1.dense.{kind}": "classifier.{kind}",
    }


FAMILY = Family(
    name="deberta_v2",
    architectures=architectures("DebertaV2"),
    parse=parse,
    weights=with_heads(weights),
    spellings={"deberta.{rest}": "{rest}"},
    # Some have positions that their config says nothing of.
    unused=(*bert.UNUSED, POSITIONS, "lm_predictions.{rest}", "mask_predictions.{rest}"),
    tied={},
)
