"""Mamba and Falcon-Mamba: layers of one norm and one mixer, without MLPs and without attention."""

from __future__ import annotations

import math

from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.family import Family, Weights
from ingot.models.fields import Fields
from ingot.models.mamba_config import MambaConfig
from ingot.models.record_fields import LONGEST, read_taps
from ingot.models.record_weights import mamba_weights

# What weights were drawn from, how they were trained, and the program that published them.
UNUSED = (
    *("time_step_min", "time_step_max", "time_step_floor", "time_step_scale", "time_step_rank"),
    *("time_step_init_scheme", "rescale_prenorm_residual", "residual_in_fp32"),
    *("use_mambapy", "use_falcon_mambapy", "use_associative_scan", "fused_add_norm", "ssm_cfg"),
    *("d_model", "d_inner", "n_layer", "intermediate_size", "pad_vocab_size_multiple"),
)
NAMES: Weights = {
    "model.embed_tokens.weight": "model.embeddings.weight",
    "model.layers.{i}.input_layernorm.weight": "model.layers.{i}.norm.weight",
    "model.norm.weight": "model.norm_f.weight",
}
HEADLESS = {"backbone.{rest}": "model.{rest}"}


def assume_defaults(fields: Fields) -> None:
    """Fills in the defaults of absent keys, and reads what nothing is made of."""
    fields.spell(rms_norm_eps="layer_norm_epsilon")
    fields.assume(rms_norm_eps=1e-5, bos_token_id=0, max_position_embeddings=LONGEST)
    for key in UNUSED:
        fields.raw(key, None)
    fields.refuse("rms_norm", (True,), "supported: RMS norms")
    fields.refuse("hidden_act", ("silu", "swish"), "supported: silu")


def read_rank(fields: Fields, hidden: int) -> int:
    """The width of the vector that time steps are linear in."""
    if fields.raw("time_step_rank", "auto") == "auto":
        return math.ceil(hidden / 16)
    return fields.integer("time_step_rank", maximum=2**16)


def parse_plain(fields: Fields) -> ModelConfig:
    """Reads the config.json of `MambaForCausalLM`."""
    return _parse(fields, norms=False)


def parse_normed(fields: Fields) -> ModelConfig:
    """Reads the config.json of `FalconMambaForCausalLM`, which differs in norms."""
    return _parse(fields, norms=True)


def _parse(fields: Fields, *, norms: bool) -> ModelConfig:
    assume_defaults(fields)
    fields.assume(
        vocab_size=50280,
        hidden_size=768,
        num_hidden_layers=32,
        eos_token_id=0,
        tie_word_embeddings=True,
    )
    hidden = fields.integer("hidden_size")
    mixer = MambaConfig(
        width=max(1, int(fields.positive("expand", 2) * hidden)),
        state=fields.integer("state_size", 16, maximum=2**16),
        rank=read_rank(fields, hidden),
        taps=read_taps(fields, "conv_kernel", 4),
        norms=norms,
        norm_eps=fields.number("mixer_rms_eps", 1e-6) if norms else 0.0,
        conv_bias=fields.flag("use_conv_bias", True),
        bias=fields.flag("use_bias", False),
    )
    return parse_decoder(fields, mixer=mixer, mlp=None)


WEIGHTS: Weights = {**NAMES, **mamba_weights("model.layers.{i}.mixer")}
TIED = {"lm_head.weight": "model.embeddings.weight"}

FAMILIES = tuple(
    Family(
        name=name,
        architectures=(architecture,),
        parse=parse,
        weights=WEIGHTS,
        spellings=HEADLESS,
        tied=TIED,
    )
    for name, architecture, parse in (
        ("mamba", "MambaForCausalLM", parse_plain),
        ("falcon_mamba", "FalconMambaForCausalLM", parse_normed),
    )
)
