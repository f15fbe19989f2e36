"""Buckets of distances: those of transformers, and what configs say of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers.models.deberta_v2 import modeling_deberta_v2
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

from ingot.errors import ConfigError, ContradictionError
from ingot.models import registry
from ingot.models.blocks.distances import buckets_of
from ingot.models.config import ModelConfig
from ingot.models.distances import DistanceConfig
from ingot.models.families import mpnet

LONGEST = 700  # of a text


def of_texts(config: DistanceConfig) -> torch.Tensor:
    """The bucket of each pair of a query and a key of a long text."""
    positions = torch.arange(LONGEST)
    reach = config.farthest
    distances = (positions[:, None] - positions).clamp(-reach, reach)
    return buckets_of(config)[distances + reach].long()


def test_those_of_mpnet() -> None:
    positions = torch.arange(LONGEST)
    wanted = MPNetEncoder.relative_position_bucket(positions - positions[:, None])
    assert torch.equal(of_texts(mpnet.DISTANCES), wanted)
    assert len(wanted.unique()) == 31  # no distance is 0 and negative


@pytest.mark.parametrize(("span", "farthest"), [(256, 512), (16, 64), (32, 40), (-1, 20)])
def test_those_of_deberta(span: int, farthest: int) -> None:
    rows = torch.empty(1, LONGEST, 1)
    relative = modeling_deberta_v2.build_relative_position(rows, rows, span, farthest)[0]
    most = span if span > 0 else farthest
    wanted = (relative + most).clamp(0, 2 * most - 1)
    config = DistanceConfig(
        spacing="deberta" if span > 0 else "even",
        buckets=2 * most,
        farthest=farthest,
        terms=("queries",),
    )
    assert torch.equal(of_texts(config), wanted)


DEBERTA: dict[str, Any] = {
    "architectures": ["DebertaV2ForSequenceClassification"], "model_type": "deberta-v2",
    "vocab_size": 128100, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "hidden_act": "gelu", "max_position_embeddings": 512,
    "relative_attention": True, "position_buckets": 256, "norm_rel_ebd": "layer_norm",
    "share_att_key": True, "pos_att_type": "p2c|c2p", "layer_norm_eps": 1e-7,
    "max_relative_positions": -1, "position_biased_input": False, "type_vocab_size": 0,
    "pooler_hidden_size": 768, "pooler_dropout": 0, "pooler_hidden_act": "gelu",
}  # fmt: skip
MPNET: dict[str, Any] = {
    "architectures": ["MPNetModel"], "vocab_size": 30527, "hidden_size": 768, "pad_token_id": 1,
    "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
    "max_position_embeddings": 514, "relative_attention_num_buckets": 32, "layer_norm_eps": 1e-5,
}  # fmt: skip
JINA: dict[str, Any] = {"architectures": ["JinaEmbeddingsV3Model"], "type_vocab_size": 1}


def parse(values: dict[str, Any], **changes: Any) -> ModelConfig:
    return registry.parse_config({**values, **changes})


def test_a_published_deberta() -> None:
    config = parse(DEBERTA)
    (mixer,) = {layer.mixer for layer in config.layers}
    assert mixer.distances == DistanceConfig(
        spacing="deberta", buckets=512, farthest=512, terms=("queries", "keys"), normed=True,
        shares=True,
    )  # fmt: skip
    assert mixer.scale == pytest.approx((64 * 3) ** -0.5)
    assert not config.learned_positions and config.max_position_embeddings == 512


def test_numbers_for_buckets_take_memory() -> None:
    with_them, without = parse(DEBERTA), parse(DEBERTA, relative_attention=False)
    mixers = (config.layers[0].mixer.temporary_width for config in (with_them, without))
    assert next(mixers) - next(mixers) == 2 * 12 * 512
    heads = parse(MPNET).layers[0].mixer
    assert heads.temporary_width == replace(heads, distances=None).temporary_width


def test_kinds_of_products_are_a_list_or_a_text() -> None:
    both = parse(DEBERTA)
    assert parse(DEBERTA, pos_att_type=["c2p", "p2c"]) == both
    only = parse(DEBERTA, pos_att_type="p2c").layers[0].mixer
    assert only.distances and only.distances.terms == ("keys",) and only.scale == 128**-0.5
    assert parse(DEBERTA, pos_att_type=None).layers[0].mixer.distances is None
    assert parse(DEBERTA, relative_attention=False).layers[0].mixer.distances is None


@pytest.mark.parametrize(
    ("values", "changes", "found"),
    [
        (DEBERTA, {"conv_kernel_size": 3}, "conv_kernel_size = 3"),
        (DEBERTA, {"type_vocab_size": 2}, "type_vocab_size = 2"),
        (DEBERTA, {"embedding_size": 512}, "embedding_size = 512"),
        (DEBERTA, {"pooler_hidden_size": 512}, "pooler_hidden_size = 512"),
        (DEBERTA, {"pos_att_type": "p2c|p2p"}, "pos_att_type = "),
        (DEBERTA, {"pos_att_type": 3}, "pos_att_type = 3"),
        (DEBERTA, {"norm_rel_ebd": "batch_norm"}, "norm_rel_ebd = "),
        (DEBERTA, {"is_decoder": True}, "is_decoder"),
        (MPNET, {"relative_attention_num_buckets": 64}, "relative_attention_num_buckets = 64"),
        (MPNET, {"pad_token_id": 0}, "pad_token_id = 0"),
        (JINA, {"type_vocab_size": 2}, "type_vocab_size = 2"),
    ],
)
def test_what_is_not_supported_is_refused_by_its_name(
    values: dict[str, Any], changes: dict[str, Any], found: str
) -> None:
    parse(values)
    with pytest.raises(ConfigError, match=found):
        parse(values, **changes)


@pytest.mark.parametrize(("buckets", "farthest"), [(30, 128), (4, 128), (0, 128), (32, 9), (32, 1)])
def test_distances_that_do_not_fit_their_buckets(buckets: int, farthest: int) -> None:
    with pytest.raises(ContradictionError, match=f"up to {farthest} are to have {buckets} buckets"):
        DistanceConfig(spacing="t5", buckets=buckets, farthest=farthest, terms=("heads",)).check()


def test_causal_attention_has_none() -> None:
    mixer = parse(MPNET).layers[0].mixer
    with pytest.raises(ContradictionError, match="causal attention has biases by distance"):
        replace(mixer, causal=True).check()
