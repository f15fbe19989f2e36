"""ERNIE 4.5 with experts: neighbours in a head are rotated, and an MLP computes all tokens."""

from __future__ import annotations

from typing import Any

from ingot.models.config import ModelConfig
from ingot.models.decoder_config import parse_decoder
from ingot.models.family import Family
from ingot.models.fields import Fields
from ingot.models.layer_fields import read_attention, read_mlp, read_num_layers
from ingot.models.moe_fields import EXPERT_WEIGHTS, MLP, read_moe, read_shared, sparse

# Of training, and of parts that predict further tokens.
UNUSED = (
    *("moe_capacity", "moe_gate", "moe_use_aux_free", "multi_token_pred_lambda"),
    *("num_nextn_predict_layers", "weight_share_add_bias", "disable_ffn_model_parallel"),
)


def read_sparse(fields: Fields) -> list[bool]:
    """Reads which layers have experts: those from a first to a last one, at intervals."""
    num_layers = read_num_layers(fields)
    start = fields.integer("moe_layer_start_index", 1, minimum=0)
    end = fields.integer("moe_layer_end_index", -1, minimum=-1)
    interval = fields.integer("moe_layer_interval", 1)
    last = num_layers - 1 if end == -1 else end
    return [start <= i <= last and (i + 1) % interval == 0 for i in range(num_layers)]


def parse(fields: Fields) -> ModelConfig:
    """Reads the config.json of `Ernie4_5_MoeForCausalLM`.

    Shares are divided by their sum and `moe_norm_min`; `transformers` takes the larger of the two,
    which is the same but where the sum is next to nothing.
    """
    for key in UNUSED:
        fields.raw(key, None)
    fields.spell(num_experts="moe_num_experts", num_experts_per_tok="moe_k")
    defaults: dict[str, Any] = {"num_experts": 64, "num_experts_per_tok": 6}
    fields.assume(**defaults, moe_intermediate_size=1536, rope_theta=5e5, tie_word_embeddings=True)
    fields.refuse("use_bias", (False,), "supported: products without biases")
    experts = read_moe(
        fields,
        correction_bias=True,
        eps=fields.number("moe_norm_min", 1e-12),
        shared=read_shared(fields, "moe_num_shared_experts", 2),
    )
    return parse_decoder(
        fields,
        mixer=read_attention(fields, pairs="neighbours"),
        mlp=sparse(read_sparse(fields), experts, read_mlp(fields)),
    )


BIAS = "moe_statics.e_score_correction_bias"
FAMILY = Family(
    name="ernie4_5_moe",
    architectures=("Ernie4_5_MoeForCausalLM",),
    parse=parse,
    weights={
        **EXPERT_WEIGHTS,
        f"{MLP}.gate.e_score_correction_bias": (f"{MLP}.{BIAS}", f"{MLP}.gate.{BIAS}"),
    },
    unused=("model.mtp{rest}", "mtp{rest}"),
)
