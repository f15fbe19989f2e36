"""Reads what LFM2 and the families after it have in common."""

from __future__ import annotations

from collections.abc import Sequence

from ingot.errors import ConfigError
from ingot.models.attention_config import AttentionConfig
from ingot.models.fields import Fields
from ingot.models.layer_config import Mixer
from ingot.models.layer_fields import read_num_layers
from ingot.models.record_fields import CONV, FULL, read_kinds, read_taps
from ingot.models.short_conv_config import ShortConvConfig

# Of the program that the models were made with: what each says stands in another key, too.
OTHER_NAMES = (
    *("block_dim", "conv_dim", "conv_dim_out", "num_heads", "block_norm_eps"),
    *("block_mlp_init_scale", "block_out_init_scale"),
    *("block_use_xavier_init", "conv_use_xavier_init"),
)


def assume_defaults(fields: Fields) -> None:
    """Fills in the defaults of absent keys, and reads what nothing is made of."""
    if "tie_embedding" in fields:
        fields.raw("tie_word_embeddings", None)
        fields.spell(tie_word_embeddings="tie_embedding")
    fields.spell(rms_norm_eps="norm_eps")
    fields.assume(
        vocab_size=65536,
        hidden_size=2560,
        intermediate_size=12288,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=128000,
        rms_norm_eps=1e-5,
        rope_theta=1e6,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    )
    for key in OTHER_NAMES:
        fields.raw(key, None)
    fields.refuse("block_use_swiglu", (True,), "supported: gated MLPs")
    fields.refuse("use_pos_enc", (True,), "supported: attention that rotates")


def read_conv(fields: Fields, taps: int = 3) -> ShortConvConfig:
    """The convolution of a layer without attention."""
    return ShortConvConfig(
        width=fields.integer("hidden_size"),
        taps=read_taps(fields, "conv_L_cache", taps),
        bias=fields.flag("conv_bias", False),
    )


def read_mixers(
    fields: Fields, attention: AttentionConfig, default: Sequence[str]
) -> tuple[Mixer, ...]:
    """The mixer of each layer: attention, or a convolution."""
    by_kind: dict[str, Mixer] = {FULL: attention, CONV: read_conv(fields)}
    return tuple(by_kind[kind] for kind in read_kinds(fields, (FULL, CONV), default))


def read_attending(fields: Fields) -> list[str]:
    """The kind of each layer by `full_attn_idxs`; without it all attend."""
    count, given = read_num_layers(fields), fields.raw("full_attn_idxs", None)
    if given is not None and (
        not isinstance(given, list) or not all(type(i) is int and 0 <= i < count for i in given)
    ):
        fields.fault(fields.wrong("full_attn_idxs", given, "a list of numbers of layers"))
        given = None
    return [FULL if given is None or i in given else CONV for i in range(count)]


def read_size(fields: Fields) -> int:
    """The width of MLPs, which most files give larger than it is."""
    if "block_ff_dim" in fields:
        fields.raw("intermediate_size", None)
        fields.spell(intermediate_size="block_ff_dim")
    size, factor = fields.integer("intermediate_size"), 1.0
    if not fields.is_null("block_ffn_dim_multiplier"):
        factor = fields.positive("block_ffn_dim_multiplier", 1.0)
    multiple = fields.integer("block_multiple_of", 256)
    if not fields.flag("block_auto_adjust_ff_dim", True):
        return size
    size = 2 * size // 3
    if fields.is_null("block_ffn_dim_multiplier"):
        return size
    size = -(-int(factor * size) // multiple) * multiple
    if size < 1:
        fields.fault(
            ConfigError(
                f"{fields.where} has block_ffn_dim_multiplier = {factor:g}, which leaves no MLP",
                hint="block_ffn_dim_multiplier must leave at least one value",
            )
        )
    return max(1, size)
