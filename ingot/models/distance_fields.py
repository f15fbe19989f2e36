"""Reads biases by distance as DeBERTa describes them, and says where their parameters lie."""

from __future__ import annotations

from collections.abc import Mapping

from ingot.models.attention_config import AttentionConfig
from ingot.models.config import ModelConfig
from ingot.models.distances import DistanceConfig, Term
from ingot.models.family import Products, Rows, Weights
from ingot.models.fields import Fields

# Products with embeddings of distances: "content to position" and the other way round.
KINDS: Mapping[str, Term] = {"c2p": "queries", "p2c": "keys"}
# Of each the parameter, and what multiplies the embeddings: a matrix of its own, or a shared one.
PARTS = {
    "queries": ("q_bias", "pos_key_proj", "key_proj"),
    "keys": ("k_bias", "pos_query_proj", "query_proj"),
}


def read_kinds(fields: Fields) -> tuple[str, ...]:
    """Which products there are: `pos_att_type` is a list, or a text with bars between."""
    found = fields.raw("pos_att_type", None) or []
    kinds = [x.strip() for x in found.lower().split("|")] if isinstance(found, str) else found
    if not isinstance(kinds, list) or not set(map(str, kinds)) <= KINDS.keys():
        expected = f"made of {' and '.join(KINDS)}"
        fields.fault(fields.wrong("pos_att_type", found, expected), "pos_att_type")
        return ()
    return tuple(kind for kind in KINDS if kind in kinds)


def read_distances(fields: Fields, kinds: tuple[str, ...]) -> DistanceConfig | None:
    """The buckets of distances, where scores depend on them."""
    farthest = fields.integer("max_relative_positions", -1, minimum=-1)
    if farthest < 1:
        farthest = fields.integer("max_position_embeddings")
    span = fields.integer("position_buckets", -1, minimum=-1)
    shares = fields.flag("share_att_key", False)
    normed = fields.choice("norm_rel_ebd", {"none": "", "layer_norm": "layer_norm"}, "none")
    if not fields.flag("relative_attention", False) or not kinds:
        return None
    return DistanceConfig(
        spacing="deberta" if span > 0 else "even",
        buckets=2 * (span if span > 0 else farthest),
        farthest=farthest,
        terms=tuple(KINDS[kind] for kind in kinds),
        normed=bool(normed),
        shares=shares,
    )


def distance_weights(config: ModelConfig, ours: str, theirs: str) -> Weights:
    """What the embeddings of distances are multiplied with is computed once, as they are read."""
    mixer = config.layers[0].mixer
    assert isinstance(mixer, AttentionConfig)
    by, found = mixer.distances, {}
    norm = "encoder.LayerNorm.weight", "encoder.LayerNorm.bias"
    for term in by.terms if by else ():
        assert by is not None
        name, own, shared = PARTS[term]
        matrix = f"{theirs}.{shared if by.shares else own}"
        found[f"{ours}.{name}.weight"] = Products(
            table=Rows("encoder.rel_embeddings.weight", shared=True),
            matrix=Rows(f"{matrix}.weight", shared=True),
            bias=Rows(f"{matrix}.bias", shared=True),
            count=by.buckets,
            columns=config.hidden_size,
            norm=tuple(Rows(each, shared=True) for each in norm if by.normed),
            eps=config.norm_eps,
        )
    return found
