"""Reads what models of whole texts have beside decoders: labels, and layers upon a pooled row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder, read_architecture
from ingot.models.family import Family, Weights
from ingot.models.fields import Fields
from ingot.models.head_config import DenseConfig, HeadActivation, HeadConfig, MaskedConfig, Pooling
from ingot.models.layer_config import Mixer, Mlp

TASKS, MASKED = "ForSequenceClassification", "ForMaskedLM"
# What `text_modules` reads.
TOLD_ELSEWHERE = (
    *("sentence_transformers", "sbert_ce_default_activation_function"),
    *("is_matryoshka", "matryoshka_dimensions"),
)


def classifies(fields: Fields) -> bool:
    """Tells whether the checkpoint has a head that gives a text a score for each label."""
    return read_architecture(fields).endswith(TASKS)


def read_labels(fields: Fields) -> tuple[str, ...]:
    """The names of the labels, in the order of their numbers."""
    named = fields.raw("id2label", None)
    if isinstance(named, dict) and named:
        count = len(named)
        if sorted(named) == sorted(map(str, range(count))):
            return tuple(str(named[str(index)]) for index in range(count))
        fields.fault(
            fields.wrong("id2label", named, "a name for each number from 0 on"), "id2label"
        )
    return tuple(f"LABEL_{index}" for index in range(fields.integer("num_labels", 2)))


def parse_encoder(
    fields: Fields,
    *,
    mixer: Mixer | tuple[Mixer, ...],
    mlp: Mlp,
    classifier: tuple[DenseConfig, ...],
    masked: MaskedConfig | None = None,
    pooling: Pooling = "mean",
    classifier_pooling: Pooling = "first",
    **decided: object,
) -> ModelConfig:
    """Reads the config.json of a model that reads whole texts.

    Args:
        mixer, mlp: as in `parse_decoder`.
        classifier: the layers before the last of a head that classifies.
        masked: a head that gives tokens their scores, where its matrix may be that of embeddings.
        pooling: of a model without such a head, where no other file says how.
        classifier_pooling: of a model with one.
        decided: fields of ModelConfig, as in `parse_decoder`.
    """
    head = HeadConfig(pooling=(pooling,))
    if masked and read_architecture(fields).endswith(MASKED):
        tied = fields.flag("tie_word_embeddings", True)
        head = replace(head, masked=replace(masked, tied=tied))
    if classifies(fields):
        labels = read_labels(fields)
        layers = (*classifier, DenseConfig(size=len(labels)))
        head = HeadConfig(pooling=(classifier_pooling,), layers=layers, labels=labels)
    for key in TOLD_ELSEWHERE:
        fields.raw(key, None)
    fields.refuse("is_decoder", (False,), "supported: encoders")
    return parse_decoder(
        fields, mixer=mixer, mlp=mlp, head=head, norm="layer", tie_embeddings=False, **decided
    )


def dense(
    fields: Fields, activation: HeadActivation, *, norm: bool = False, bias: bool = True
) -> DenseConfig:
    """A layer as wide as the model."""
    size = fields.integer("hidden_size")
    return DenseConfig(size=size, activation=activation, norm=norm, bias=bias)


def or_masked(
    weights: Weights | Callable[[ModelConfig], Weights], masked: Weights
) -> Callable[[ModelConfig], Weights]:
    """A table of tensors, with those of scores of tokens in place of another head's, where a model
    is to have them."""

    def of(config: ModelConfig) -> Weights:
        usual = weights(config) if callable(weights) else weights
        if config.head is None or not config.head.log1ps:
            return usual
        others = {name: usual[name] for name in usual if not name.startswith("head.")}
        return {**others, **masked}

    return of


def classifying(family: Family, architecture: str) -> Family:
    """A family of decoders whose last token gives scores of labels instead of logits, as
    `...ForSequenceClassification` of transformers does."""

    def parse(fields: Fields) -> ModelConfig:
        labels = read_labels(fields)
        config: ModelConfig = family.parse(fields)
        layer = DenseConfig(size=len(labels), bias=False)
        head = HeadConfig(pooling=("last",), layers=(layer,), labels=labels)
        return replace(config, head=head, tie_embeddings=False)

    def weights(config: ModelConfig) -> Weights:
        return {"head.0.dense.weight": "score.weight", **family.weights_of(config)}

    unused = (*family.unused, "lm_head.weight")
    return replace(
        family, architectures=(architecture,), parse=parse, weights=weights, unused=unused, tied={}
    )
