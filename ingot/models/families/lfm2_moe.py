"""LFM2-MoE: LFM2 with experts after its first layers, picked by sigmoids with a bias."""

from __future__ import annotations

from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.families import lfm2
from ingot.models.family import Family, Rows, Stack
from ingot.models.fields import Fields
from ingot.models.layer_fields import read_attention, read_mlp, read_num_layers
from ingot.models.lfm_fields import assume_defaults, read_mixers
from ingot.models.moe_fields import DOWN, GATE_UP, MLP, read_moe, sparse
from ingot.models.record_fields import FULL


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `Lfm2MoeForCausalLM`."""
    assume_defaults(fields)
    fields.assume(
        hidden_size=2048,
        intermediate_size=7168,
        moe_intermediate_size=1792,
        num_experts=32,
        num_experts_per_tok=4,
    )
    count, dense = read_num_layers(fields), fields.integer("num_dense_layers", 2, minimum=0)
    experts = read_moe(
        fields,
        scoring="sigmoid",
        correction_bias=fields.flag("use_expert_bias", True),
        normalise=fields.flag("norm_topk_prob", True),
        eps=1e-6,
        scale=fields.positive("routed_scaling_factor", 1.0),
    )
    return parse_decoder(
        fields,
        mixer=read_mixers(fields, read_attention(fields, qk_norm="head"), [FULL] * count),
        mlp=sparse([i >= dense for i in range(count)], experts, read_mlp(fields)),
    )


THEIRS = lfm2.MLP
FAMILY = Family(
    name="lfm2_moe",
    architectures=("Lfm2MoeForCausalLM",),
    parse=parse,
    weights={
        **lfm2.WEIGHTS,
        f"{MLP}.gate.weight": f"{THEIRS}.gate.weight",
        f"{MLP}.gate.e_score_correction_bias": f"{THEIRS}.expert_bias",
        GATE_UP: (
            Stack(
                (
                    Rows(f"{THEIRS}.experts.{{e}}.w1.weight"),
                    Rows(f"{THEIRS}.experts.{{e}}.w3.weight"),
                )
            ),
            f"{THEIRS}.experts.gate_up_proj",
        ),
        DOWN: (
            Stack((Rows(f"{THEIRS}.experts.{{e}}.w2.weight"),)),
            f"{THEIRS}.experts.down_proj",
        ),
    },
)
