"""Reads Mamba-2, whose sizes families of models spell each in a way of its own."""

from __future__ import annotations

from ingot.errors import ConfigError
from ingot.models.fields import Fields
from ingot.models.mamba2_config import Mamba2Config
from ingot.models.moe_fields import spell_either
from ingot.models.record_fields import read_taps, read_time_steps

# What some files call keys that others spell as Mamba-2 does.
OTHER_NAMES = {
    "n_groups": "mamba_n_groups",
    "conv_kernel": "mamba_d_conv",
    "time_step_limit": "mamba_dt_limit",
    "use_conv_bias": "mamba_conv_bias",
}


def read_mamba2(fields: Fields) -> Mamba2Config:
    """Mamba-2 as its own models spell it."""
    heads, head_dim = (
        fields.integer("num_heads", 128, maximum=2**16),
        fields.integer("head_dim", 64, maximum=2**16),
    )
    width = int(fields.positive("expand", 2) * fields.integer("hidden_size"))
    if heads * head_dim != width and fields.sound():
        fields.fault(
            ConfigError(
                f"{fields.where} has {heads} heads of {head_dim} in num_heads and head_dim, which "
                f"are not expand * hidden_size = {width} together",
                hint="correct one of the four keys",
            )
        )
    shortest, longest = read_time_steps(fields)
    return Mamba2Config(
        heads=heads,
        head_dim=head_dim,
        groups=fields.integer("n_groups", 8, maximum=2**16),
        state=fields.integer("state_size", 128, maximum=2**16),
        taps=read_taps(fields, "conv_kernel", 4),
        norm_eps=fields.number("rms_norm_eps"),
        conv_bias=fields.flag("use_conv_bias", True),
        bias=fields.flag("use_bias", False),
        shortest=shortest,
        longest=longest,
    )


def read_granite_mamba2(fields: Fields) -> Mamba2Config:
    """Mamba-2 as Granite spells it."""
    width = fields.integer("hidden_size") * fields.integer("mamba_expand", 2, maximum=2**8)
    heads = fields.integer("mamba_n_heads", 128, maximum=2**16)
    head_dim = width // heads
    if fields.raw("mamba_d_head", "auto") != "auto":
        head_dim = fields.integer("mamba_d_head", maximum=2**16)
    if heads * head_dim != width and fields.sound():
        fields.fault(
            ConfigError(
                f"{fields.where} has {heads} heads of {head_dim} in mamba_n_heads and "
                f"mamba_d_head, which are not mamba_expand * hidden_size = {width} together",
                hint="correct one of the four keys",
            )
        )
    shortest, longest = read_time_steps(fields)
    return Mamba2Config(
        heads=heads,
        head_dim=max(1, head_dim),
        groups=fields.integer("mamba_n_groups", 1, maximum=2**16),
        state=fields.integer("mamba_d_state", 256, maximum=2**16),
        taps=read_taps(fields, "mamba_d_conv", 4),
        norm_eps=fields.number("rms_norm_eps"),
        conv_bias=fields.flag("mamba_conv_bias", True),
        bias=fields.flag("mamba_proj_bias", False),
        shortest=shortest,
        longest=longest,
    )


def read_nemotron_mamba2(fields: Fields) -> Mamba2Config:
    """Mamba-2 as Nemotron-H spells it. Its time steps have no floor, though `transformers` has one
    in a whole pass."""
    fields.refuse("mamba_hidden_act", ("silu", "swish"), "supported: silu")
    for key, other in OTHER_NAMES.items():
        spell_either(fields, key, other)
    shortest, longest = read_time_steps(fields)
    return Mamba2Config(
        heads=fields.integer("mamba_num_heads", 128, maximum=2**16),
        head_dim=fields.integer("mamba_head_dim", 64, maximum=2**16),
        groups=fields.integer("n_groups", 8, maximum=2**16),
        state=fields.integer("ssm_state_size", 128, maximum=2**16),
        taps=read_taps(fields, "conv_kernel", 4),
        norm_eps=fields.number("rms_norm_eps"),
        conv_bias=fields.flag("use_conv_bias", True),
        bias=fields.flag("use_bias", False),
        shortest=shortest,
        longest=longest,
    )
