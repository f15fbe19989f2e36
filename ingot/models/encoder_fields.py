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

MASKED = "ForMaskedLM"
# What has a score for each label: a text, or each of its tokens.
TEXTS, TOKENS = "ForSequenceClassification", "ForTokenClassification"
TOKEN_LABELS: Weights = {"head.0.dense.{kind}": "classifier.{kind}"}
# What `text_modules` reads.
TOLD_ELSEWHERE = (
    *("sentence_transformers", "sbert_ce_default_activation_function"),
    *("is_matryoshka", "matryoshka_dimensions"),
)


def architectures(*names: str) -> tuple[str, ...]:
    """The classes of models by these names: bare, and with each head that is known."""
    return tuple(f"{name}{head}" for name in names for head in ("Model", MASKED, TEXTS, TOKENS))


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
    token_classifier: tuple[DenseConfig, ...] = (),
    masked: MaskedConfig | None = None,
    pooling: Pooling = "mean",
    classifier_pooling: Pooling = "first",
    **decided: object,
) -> ModelConfig:
    """Reads the config.json of a model that reads whole texts.

    Args:
        mixer, mlp: as in `parse_decoder`.
        classifier: the layers before the last of a head that classifies texts.
        token_classifier: those of a head that classifies tokens.
        masked: a head that gives tokens their scores, where its matrix may be that of embeddings.
        pooling: of a model without such a head, where no other file says how.
        classifier_pooling: of a model with one.
        decided: fields of ModelConfig, as in `parse_decoder`.
    """
    head, architecture = HeadConfig(pooling=(pooling,)), read_architecture(fields)
    if masked and architecture.endswith(MASKED):
        tied = fields.flag("tie_word_embeddings", True)
        head = replace(head, masked=replace(masked, tied=tied))
    if architecture.endswith((TEXTS, TOKENS)):
        of_tokens, labels = architecture.endswith(TOKENS), read_labels(fields)
        layers = token_classifier if of_tokens else classifier
        head = HeadConfig(
            pooling=() if of_tokens else (classifier_pooling,),
            layers=(*layers, DenseConfig(size=len(labels))),
            labels=labels,
        )
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


def with_heads(
    weights: Weights | Callable[[ModelConfig], Weights],
    *,
    masked: Weights | None = None,
    token_labels: Weights = TOKEN_LABELS,
) -> Callable[[ModelConfig], Weights]:
    """A table of tensors, with those of scores or labels of tokens in place of another head's,
    where a model is to have them."""

    def of(config: ModelConfig) -> Weights:
        usual = weights(config) if callable(weights) else weights
        head, other = config.head, None
        if head is not None and head.log1ps:
            other = masked
        elif head is not None and head.labels and not head.pooling:
            other = token_labels
        if other is None:
            return usual
        return {**{name: usual[name] for name in usual if not name.startswith("head.")}, **other}

    return of


def classifying(family: Family, architecture: str) -> Family:
    """A family of decoders that give scores of labels instead of logits, by their last token as
    `...ForSequenceClassification` of transformers, or for each as `...ForTokenClassification`."""
    of_tokens = architecture.endswith(TOKENS)

    def parse(fields: Fields) -> ModelConfig:
        labels = read_labels(fields)
        config: ModelConfig = family.parse(fields)
        layer = DenseConfig(size=len(labels), bias=of_tokens)
        head = HeadConfig(pooling=() if of_tokens else ("last",), layers=(layer,), labels=labels)
        return replace(config, head=head, tie_embeddings=False)

    def weights(config: ModelConfig) -> Weights:
        names = "score.{kind}", "classifier.{kind}"
        return {"head.0.dense.{kind}": names, **family.weights_of(config)}

    unused = (*family.unused, "lm_head.weight")
    return replace(
        family, architectures=(architecture,), parse=parse, weights=weights, unused=unused, tied={}
    )
