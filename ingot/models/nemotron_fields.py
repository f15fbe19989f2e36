"""Reads the layers of Nemotron-H, and its experts."""

from __future__ import annotations

from ingot.models.fields import Fields
from ingot.models.layer_fields import read_mlp
from ingot.models.mlp_config import MlpConfig
from ingot.models.moe_config import MoeConfig
from ingot.models.moe_fields import MOST_EXPERTS, read_moe, spell_either
from ingot.models.record_fields import FULL, KINDS, MAMBA, read_kinds

DENSE, EXPERTS = "mlp", "moe"
LETTERS = {"M": MAMBA, "*": FULL, "-": DENSE, "E": EXPERTS}
SPELLED = {**KINDS, "mlp": DENSE, "moe": EXPERTS}
USUAL = (MAMBA, EXPERTS, FULL, DENSE)  # of a file that tells nothing of its layers


def read_layers(fields: Fields) -> tuple[str, ...]:
    """The kind of each layer: from a list, or from a pattern with a letter for each."""
    pattern = fields.raw("hybrid_override_pattern", None)
    default: tuple[str, ...] = USUAL
    if pattern is not None:
        known = isinstance(pattern, str) and pattern and set(pattern) <= LETTERS.keys()
        if known:
            default = tuple(LETTERS[letter] for letter in pattern)
        else:
            wanted = f"made of {' '.join(LETTERS)}"
            fields.fault(fields.wrong("hybrid_override_pattern", pattern, wanted))
    spell_either(fields, "layer_types", "layers_block_type")
    given = fields.raw("layer_types", None)
    count = len(given) if isinstance(given, list) and given else len(default)
    fields.assume(num_hidden_layers=count)
    kinds = read_kinds(fields, tuple(SPELLED.values()), default, SPELLED)
    if len(kinds) != fields.integer("num_hidden_layers", maximum=10_000) and fields.sound():
        number = fields.raw("num_hidden_layers")
        fields.fault(fields.wrong("num_hidden_layers", number, f"{len(kinds)}, as layers are told"))
    return kinds


def read_experts(fields: Fields) -> MoeConfig:
    """Plain experts that are picked by sigmoids with a correction bias, in groups."""
    dense = read_mlp(fields, kind="plain", bias=fields.flag("mlp_bias", False))
    shared = fields.integer("moe_shared_expert_intermediate_size", 7688)
    fields.integer("n_shared_experts", 1, minimum=0, maximum=MOST_EXPERTS)  # one, in any case
    latent = 0
    if not fields.is_null("moe_latent_size"):
        latent = fields.integer("moe_latent_size", 0, minimum=0)
    return read_moe(
        fields,
        kind="plain",
        latent=latent,
        latent_bias=dense.bias and latent > 0,
        scoring="sigmoid",
        correction_bias=True,
        groups=fields.integer("n_group", 1, maximum=MOST_EXPERTS),
        kept_groups=fields.integer("topk_group", 1, maximum=MOST_EXPERTS),
        group_score="top2",
        normalise=fields.flag("norm_topk_prob", True),
        eps=1e-20,
        scale=fields.positive("routed_scaling_factor", 1.0),
        shared=MlpConfig(kind="plain", size=shared, activation=dense.activation, bias=dense.bias),
    )
