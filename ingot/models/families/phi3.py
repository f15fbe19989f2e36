"""Phi-3, 3.5, 4 and 4-mini: Llama with fused projections, partial rotation and longrope."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.families.fused import GATE_UP, QKV
from ingot.models.family import Family
from ingot.models.fields import Fields
from ingot.models.layer_fields import read_attention, read_head_dim, read_mlp, read_window
from ingot.models.rope_config import parse_rope

# Keys of Phi-4-mini, with the one meaning that any file has.
FIXED: Mapping[str, Any] = {
    "attention_bias": False,
    "full_attn_mod": 1,
    "interpolate_factor": 1,
    "lm_head_bias": False,
    "mlp_bias": False,
}


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `Phi3ForCausalLM`."""
    fields.assume(
        num_key_value_heads=fields.integer("num_attention_heads"),
        max_position_embeddings=4096,
        original_max_position_embeddings=4096,
        rms_norm_eps=1e-5,
        bos_token_id=1,
        eos_token_id=32000,
    )
    fields.raw("original_max_position_embeddings")  # read again, by longrope alone
    for key, value in FIXED.items():
        fields.refuse(key, (value,), f"supported: {value}")
    longest = fields.integer("max_position_embeddings")
    rope = parse_rope(
        fields, read_head_dim(fields), longest, partial=True, called={"yarn": "longrope"}
    )
    return parse_decoder(
        fields,
        mixer=read_attention(fields, rope=rope, window=read_window(fields)),
        mlp=read_mlp(fields),
    )


FAMILY = Family(
    name="phi3",
    architectures=("Phi3ForCausalLM",),
    parse=parse,
    weights={**QKV, **GATE_UP},
)
