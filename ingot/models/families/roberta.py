"""RoBERTa, XLM-RoBERTa and CamemBERT: BERT whose positions begin behind that of the padding."""

from __future__ import annotations

from ingot.models.config import ModelConfig
from ingot.models.encoder_fields import architectures, dense, with_heads
from ingot.models.families import bert
from ingot.models.family import Family, Weights
from ingot.models.fields import Fields
from ingot.models.head_config import MaskedConfig

PADDING = 1  # its id in all vocabularies of this family; positions are numbered from the next on


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `XLMRobertaModel` and `RobertaModel`, with or without a head."""
    fields.spell(rms_norm_eps="layer_norm_eps")
    fields.assume(**bert.DEFAULTS | {"vocab_size": 50265, "max_position_embeddings": 514})
    fields.refuse("pad_token_id", (PADDING,), "positions are numbered from the padding's id on")
    return bert.parse_layers(
        fields,
        token_types=fields.integer("type_vocab_size", 1),
        masked=MaskedConfig(transform=dense(fields, "gelu", norm=True)),
        max_position_embeddings=fields.integer("max_position_embeddings") - PADDING - 1,
    )


def weights(config: ModelConfig) -> Weights:
    """BERT's table, with the names of another head."""
    return {
        **bert.weights(config, skipped=PADDING + 1),
        "head.0.dense.{kind}": "classifier.dense.{kind}",
        "head.1.dense.{kind}": "classifier.out_proj.{kind}",
    }


MASKED: Weights = {
    "head.0.dense.{kind}": "lm_head.dense.{kind}",
    "head.0.norm.{kind}": "lm_head.layer_norm.{kind}",
    "scores.weight": "lm_head.decoder.weight",
    "scores.bias": ("lm_head.bias", "lm_head.decoder.bias"),
}

FAMILY = Family(
    name="roberta",
    architectures=architectures("XLMRoberta", "Roberta", "Camembert"),
    parse=parse,
    weights=with_heads(weights, masked=MASKED),
    spellings={"roberta.{rest}": "{rest}", **bert.OLD_NORMS},
    unused=bert.UNUSED,
    tied={"lm_head.decoder.weight": "embeddings.word_embeddings.weight"},
)
