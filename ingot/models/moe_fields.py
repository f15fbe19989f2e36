"""Reads what layers with experts consist of, and the tensors that experts are published in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ingot.errors import ConfigError
from ingot.models.family import Rows, Stack, Weights
from ingot.models.fields import Fields
from ingot.models.layer_config import Mlp
from ingot.models.layer_fields import read_activation, read_num_layers
from ingot.models.mlp_config import MlpConfig
from ingot.models.moe_config import MoeConfig
from ingot.models.weight_rules import Entry

MOST_EXPERTS = 2**12
MLP = "model.layers.{i}.mlp"
SPARSE = "model.layers.{i}.block_sparse_moe"
SHARED = f"{MLP}.shared_expert"
GATE_UP, DOWN = f"{MLP}.experts.gate_up_proj", f"{MLP}.experts.down_proj"


def read_moe(fields: Fields, **decided: Any) -> MoeConfig:
    """Experts as common keys describe them.

    Args:
        fields: config.json, with the family's spellings and defaults.
        decided: fields of MoeConfig that are not common keys.

    Raises:
        ConfigError: missing or wrong values.
    """
    return MoeConfig(
        experts=fields.integer("num_experts", maximum=MOST_EXPERTS),
        picks=fields.integer("num_experts_per_tok", maximum=MOST_EXPERTS),
        size=fields.integer("moe_intermediate_size"),
        **{"gate": read_activation(fields), **decided},
    )


def read_shared(fields: Fields, key: str, default: int) -> MlpConfig | None:
    """The MLP of all tokens, as wide as so many experts; none where there are 0 of them."""
    count = fields.integer(key, default, minimum=0, maximum=MOST_EXPERTS)
    if not count:
        return None
    size = count * fields.integer("moe_intermediate_size")
    return MlpConfig(size=size, activation=read_activation(fields))


def read_shared_expert(fields: Fields) -> MlpConfig:
    """The MLP of all tokens of a family that says how wide it is."""
    size = fields.integer("shared_expert_intermediate_size")
    return MlpConfig(size=size, activation=read_activation(fields))


def read_noaux(fields: Fields, *, shared: int, scale: float = 1.0) -> MoeConfig:
    """Experts that are picked by sigmoids with a correction bias, in groups, as DeepSeek-V3 does.

    Args:
        shared, scale: the number of shared experts, and `routed_scaling_factor`, where config.json
            does not tell them.

    Source: "DeepSeek-V3 Technical Report" (arXiv 2412.19437), 2.1.2.
    """
    fields.refuse("topk_method", ("noaux_tc",), "supported: noaux_tc")
    fields.refuse("scoring_func", ("sigmoid",), "supported: sigmoid")
    fields.refuse("moe_layer_freq", (1,), "supported: experts in all layers but the first ones")
    return read_moe(
        fields,
        scoring="sigmoid",
        correction_bias=True,
        groups=fields.integer("n_group", 1, maximum=MOST_EXPERTS),
        kept_groups=fields.integer("topk_group", 1, maximum=MOST_EXPERTS),
        group_score="top2",
        normalise=fields.flag("norm_topk_prob", True),
        eps=1e-20,
        scale=fields.positive("routed_scaling_factor", scale),
        shared=read_shared(fields, "n_shared_experts", shared),
    )


def read_mtp_layers(fields: Fields, default: int = 1) -> int:
    """Reads the number of the checkpoint's layers that come after the model's."""
    spell_either(fields, "num_nextn_predict_layers", "num_mtp_layers")
    return fields.integer("num_nextn_predict_layers", default, minimum=0)


def read_sparse_layers(fields: Fields) -> list[bool]:
    """Reads which layers have experts, by `decoder_sparse_step` and `mlp_only_layers`."""
    step, num_layers = fields.integer("decoder_sparse_step", 1), read_num_layers(fields)
    dense = fields.raw("mlp_only_layers", [])
    if not isinstance(dense, list) or not all(type(i) is int for i in dense):
        fields.fault(fields.wrong("mlp_only_layers", dense, "a list of numbers of layers"))
        dense = []
    return [(i + 1) % step == 0 and i not in dense for i in range(num_layers)]


def read_sparse_after(fields: Fields, default: int) -> list[bool]:
    """Reads which layers have experts: all but the first `first_k_dense_replace`."""
    first = fields.integer("first_k_dense_replace", default, minimum=0)
    return [i >= first for i in range(read_num_layers(fields))]


def sparse(layers: Sequence[bool], experts: MoeConfig, dense: MlpConfig) -> tuple[Mlp, ...]:
    """The MLP of each layer."""
    return tuple(experts if has_experts else dense for has_experts in layers)


def spell_either(fields: Fields, key: str, other: str) -> None:
    """Lets a key stand in the file under another name, which some writers give it."""
    if key in fields and other in fields:
        if fields.raw(key) != fields.raw(other):
            fields.fault(
                ConfigError(
                    f"{fields.where} has {key} = {fields.raw(key)!r} and "
                    f"{other} = {fields.raw(other)!r}",
                    hint="the two are the same: keep one of them",
                )
            )
    elif other in fields:
        fields.spell(**{key: other})


def _each(experts: str, gate: str, up: str, down: str) -> dict[str, Stack]:
    """Experts that have tensors of their own, by the names of them."""
    return {
        GATE_UP: Stack((Rows(f"{experts}.{gate}.weight"), Rows(f"{experts}.{up}.weight"))),
        DOWN: Stack((Rows(f"{experts}.{down}.weight"),)),
    }


EACH = _each(f"{MLP}.experts.{{e}}", "gate_proj", "up_proj", "down_proj")
_TABLES: tuple[Mapping[str, Entry], ...] = (
    EACH,
    _each(f"{SPARSE}.experts.{{e}}", "w1", "w3", "w2"),
    {name: name for name in _each("", "", "", "")},
)
# Every spelling that the experts of most families are published in, and their router.
EXPERT_WEIGHTS: Weights = {
    **{name: tuple(table[name] for table in _TABLES) for name in _TABLES[0]},
    f"{MLP}.gate.weight": (f"{MLP}.gate.weight", f"{SPARSE}.gate.weight"),
}
# The MLP of all tokens where it has a gate of its own.
SHARED_EXPERT_WEIGHTS: Weights = {
    f"{MLP}.shared_experts.gate_up_proj": Stack(
        (Rows(f"{SHARED}.gate_proj.weight"), Rows(f"{SHARED}.up_proj.weight"))
    ),
    f"{MLP}.shared_experts.down_proj": Stack((Rows(f"{SHARED}.down_proj.weight"),)),
    f"{MLP}.shared_gate.weight": f"{MLP}.shared_expert_gate.weight",
}
