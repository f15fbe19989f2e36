"""Reads latent attention from config.json, and says where its parameters lie."""

from __future__ import annotations

import math
from dataclasses import replace

from ingot.models.config import ModelConfig
from ingot.models.family import Rows, Weights
from ingot.models.fields import Fields
from ingot.models.latent_config import LatentConfig
from ingot.models.rope import Pairs, RopeConfig
from ingot.models.rope_config import parse_rope

_LARGEST = 2**16
_ROPES = ("rope_parameters", "rope_scaling")


def read_latent(fields: Fields, *, pairs: Pairs = "neighbours") -> LatentConfig:
    """Latent attention as the keys of DeepSeek describe it.

    Args:
        pairs: which dimensions of the rotated parts turn together.

    Raises:
        ConfigError: missing, wrong or contradictory values.
    """
    heads = fields.integer("num_attention_heads", maximum=_LARGEST)
    plain = fields.integer("qk_nope_head_dim", maximum=_LARGEST)
    rotated = fields.integer("qk_rope_head_dim", maximum=_LARGEST)
    fields.refuse("num_key_value_heads", (heads,), "latent attention has as many as heads")
    fields.refuse("head_dim", (rotated, plain + rotated), "qk_rope_head_dim must say the same")
    fields.refuse("qk_head_dim", (plain + rotated,), "the parts of a query must add up to it")
    has_q_rank = not fields.is_null("q_lora_rank")
    rope = parse_rope(fields, rotated, fields.integer("max_position_embeddings"))
    return LatentConfig(
        num_heads=heads,
        q_rank=fields.integer("q_lora_rank", maximum=_LARGEST) if has_q_rank else 0,
        rank=fields.integer("kv_lora_rank", maximum=_LARGEST),
        plain_dim=plain,
        rotated_dim=rotated,
        value_dim=fields.integer("v_head_dim", maximum=_LARGEST),
        scale=(plain + rotated) ** -0.5 * _stretch(fields, rope) ** 2,
        rope=replace(rope, pairs=pairs),
        bias=fields.flag("attention_bias", False),
    )


def _stretch(fields: Fields, rope: RopeConfig) -> float:
    """Factor by which yarn multiplies queries and keys, which `parse_rope` leaves out where it is
    for all dimensions and not for the rotated ones alone."""
    over = 0.0
    for key in _ROPES:
        if fields.raw(key, None) and rope.type == "yarn":
            over = fields.nested(key).number("mscale_all_dim", 0.0)
    return 0.1 * over * math.log(rope.factor) + 1.0 if over and rope.factor > 1.0 else 1.0


def latent_weights(config: ModelConfig) -> Weights:
    """The tensors that the parameters of latent attention are published in.

    Queries have both parts of a head side by side. The tensor of keys and values has the plain part
    of a head's key and then its value; a query is multiplied with the former transposed.
    """
    mixers = [mixer for mixer in config.mixers if isinstance(mixer, LatentConfig)]
    heads, has_rank = (mixers[0].num_heads, mixers[0].q_rank) if mixers else (1, 0)
    layer = "model.layers.{i}.self_attn"
    queries = f"{layer}.q_b_proj.weight" if has_rank else f"{layer}.q_proj.weight"
    row, both = f"{layer}.kv_a_proj_with_mqa.{{kind}}", f"{layer}.kv_b_proj.weight"
    return {
        f"{layer}.q_plain_proj.weight": Rows(queries, 0, blocks=heads),
        f"{layer}.q_rotated_proj.weight": Rows(queries, 1, blocks=heads),
        f"{layer}.latent_proj.{{kind}}": Rows(row, 0),
        f"{layer}.k_rotated_proj.{{kind}}": Rows(row, 1),
        f"{layer}.k_b_proj.weight": (
            Rows(both, 0, blocks=heads, turned=True),
            f"{layer}.k_b_proj.weight",
        ),
        f"{layer}.v_b_proj.weight": (Rows(both, 1, blocks=heads), f"{layer}.v_b_proj.weight"),
    }
