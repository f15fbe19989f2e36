"""Mamba-2: layers of one norm and one mixer, without MLPs and without attention."""

from __future__ import annotations

from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.families.mamba import HEADLESS, NAMES, assume_defaults
from ingot.models.family import Family, Weights
from ingot.models.fields import Fields
from ingot.models.mamba2_config import Mamba2Config
from ingot.models.mamba2_fields import read_mamba2
from ingot.models.record_weights import mamba2_weights


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
