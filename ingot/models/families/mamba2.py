"""Mamba-2: layers of one norm and one mixer, without MLPs and without attention."""

from __future__ import annotations

from ingot.errors import ConfigError
from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.families.mamba import HEADLESS, NAMES, assume_defaults
from ingot.models.family import Family, Weights
from ingot.models.fields import Fields
from ingot.models.mamba2_config import Mamba2Config
from ingot.models.record_fields import read_taps, read_time_steps
from ingot.models.record_weights import mamba2_weights


def read_mamba2(fields: Fields) -> Mamba2Config:
    """The mixer of every layer."""
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


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `Mamba2ForCausalLM`."""
    assume_defaults(fields)
    fields.assume(vocab_size=32768, hidden_size=4096, num_hidden_layers=64, eos_token_id=2)
    for key in ("chunk_size", "norm_before_gate"):
        fields.raw(key, None)
    return parse_decoder(fields, mixer=read_mamba2(fields), mlp=None)


def weights(config: ModelConfig) -> Weights:
    """The table of tensors."""
    bias = any(isinstance(mixer, Mamba2Config) and mixer.bias for mixer in config.mixers)
    return {**NAMES, **mamba2_weights("model.layers.{i}.mixer", bias=bias)}


FAMILY = Family(
    name="mamba2",
    architectures=("Mamba2ForCausalLM",),
    parse=parse,
    weights=weights,
    spellings=HEADLESS,
    tied={"lm_head.weight": "model.embeddings.weight"},
)
